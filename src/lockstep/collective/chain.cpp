#include "lockstep/collective/chain.h"

#include <algorithm>
#include <cstring>

namespace lockstep::collective {
namespace {

constexpr std::size_t kChunk = std::size_t{64} << 10;  // bytes of carry
constexpr std::size_t kAhead = 16;                     // chunks that may be under way

std::size_t size_of_all(std::span<const ByteView> parts) {
  std::size_t size = 0;
  for (const ByteView part : parts) size += part.size();
  return size;
}

// The parts as one, if each begins where the one before it ends.
ByteView joined(std::span<const ByteView> parts) {
  ByteView whole;
  for (const ByteView part : parts) {
    if (part.empty()) continue;
    if (!whole.empty() && whole.data() + whole.size() != part.data()) return {};
    whole = {whole.empty() ? part.data() : whole.data(), whole.size() + part.size()};
  }
  return whole;
}

}  // namespace

Chain::Chain(Spanning& spanning, std::span<const ByteView> inputs, Share share, int until)
    : spanning_(spanning),
      links_(spanning.links_),
      inputs_(inputs),
      input_(joined(inputs)),
      size_(size_of_all(inputs)),
      share_(share),
      until_(until),
      hosts_(spanning.layout_.host_count()),
      element_(spanning.element_),
      carry_(carry_size(spanning.fingerprint_.dtype)),
      chunk_(kChunk / carry_) {
  const auto& hosts = spanning.layout_.hosts;
  lanes_ = static_cast<int>(hosts[0].size());
  for (const std::vector<int>& members : hosts) lanes_ = std::min(lanes_, static_cast<int>(members.size()));
  const auto lane = static_cast<std::size_t>(spanning.local_index());
  if (spanning.local_index() >= lanes_) return;
  if (spanning.host() > 0) previous_ = hosts[static_cast<std::size_t>(spanning.host()) - 1][lane];
  if (spanning.host() + 1 < hosts_) next_ = hosts[static_cast<std::size_t>(spanning.host()) + 1][lane];
}

std::size_t Chain::window() const {
  const std::size_t grain = 64 * element_;
  return spanning_.communicator_.board().staging().size() / grain * grain;
}

void Chain::stage(ByteSpan to, std::size_t at) const {
  for (const ByteView part : inputs_) {
    if (to.empty()) return;
    const ByteView here = part_of(part, at, to.size());
    copy_together(spanning_.means_, to.first(here.size()), here.data());
    to = to.subspan(here.size());
    at -= std::min(at, part.size());
  }
}

// The chunks of our slice of the window that begins at `from`; the result of the slice's first one lies at
// `to`. In elements.
std::vector<Chain::Piece> Chain::pieces_of(Slice slice, std::size_t from, std::size_t to) const {
  std::vector<Piece> pieces;
  for (std::size_t at = slice.begin; at < slice.end; at += chunk_)
    pieces.push_back({from + at, to + at - slice.begin, std::min(chunk_, slice.end - at)});
  return pieces;
}

Status Chain::run() {
  const auto& hosts = spanning_.layout_.hosts;
  const bool alone =
      std::none_of(hosts.begin(), hosts.end(), [](const auto& members) { return members.size() > 1; });
  if (alone) {
    const double factor = spanning_.factor_;
    const std::byte* const source = input_.data();
    // A host that only passes the result on has no place for it.
    Buffer passing;
    if (share_.bytes.empty() && spanning_.host() >= until_) passing.resize(size_);
    const ByteSpan result = share_.bytes.empty() ? ByteSpan(passing) : share_.bytes;
    return run_lane({&source, 1}, {&factor, 1}, result, {}, pieces_of({0, size_ / element_}, 0, 0));
  }
  const LocalCall call = spanning_.local();
  LocalRounds rounds(call);
  // Neighbours must choose alike: whether the output is the input is known to a reduce's root alone.
  const bool to_all = spanning_.fingerprint_.kind == OpKind::kAllReduce;
  for (std::size_t at = 0; at < size_; at += window()) {
    const std::size_t size = std::min(window(), size_ - at);
    LOCKSTEP_ASSIGN(const std::vector<Exposed> inputs, expose(rounds, at, size));
    const bool resident =
        std::all_of(inputs.begin(), inputs.end(), [](const Exposed& peer) { return peer.resident(); });
    if (resident && to_all) return run_direct(rounds, inputs);
    LOCKSTEP_TRY(run_window(rounds, inputs, at, size));
  }
  return {};
}

Result<std::vector<Exposed>> Chain::expose(LocalRounds& rounds, std::size_t at, std::size_t size) {
  LOCKSTEP_TRY(rounds.open());
  if (const auto offset = rounds.resident_offset(input_)) {
    rounds.post_resident(*offset, size_, size_);
  } else {
    stage(rounds.staging().first(size), at);
    rounds.post_staged(size, size_);
  }
  return rounds.await_all();
}

Status Chain::run_direct(LocalRounds& rounds, std::span<const Exposed> inputs) {
  if (spanning_.local_index() < lanes_) {
    std::vector<const std::byte*> sources;
    std::vector<double> factors;
    std::vector<std::byte*> others;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      LOCKSTEP_ASSIGN(std::byte* const bytes, inputs[i].window(0, size_));
      sources.push_back(bytes);
      factors.push_back(inputs[i].header.factor);
      if (static_cast<int>(i) != spanning_.local_index()) others.push_back(bytes);
    }
    // The same pieces as on a host that goes by windows.
    std::vector<Piece> pieces;
    for (std::size_t at = 0; at < size_; at += window()) {
      const std::size_t count = std::min(window(), size_ - at) / element_;
      const Slice slice = slice_of(count, element_, lanes_, spanning_.local_index());
      const std::size_t from = at / element_;
      const std::vector<Piece> more = pieces_of(slice, from, from + slice.begin);
      pieces.insert(pieces.end(), more.begin(), more.end());
    }
    LOCKSTEP_TRY(run_lane(sources, factors, share_.bytes, others, pieces));
  }
  return rounds.close(true);
}

Status Chain::run_window(LocalRounds& rounds, std::span<const Exposed> inputs, std::size_t at,
                         std::size_t size) {
  LOCKSTEP_TRY(rounds.open());
  const std::size_t count = size / element_;
  const bool comes_by = spanning_.host() >= until_;
  if (spanning_.local_index() < lanes_) {
    const Slice slice = slice_of(count, element_, lanes_, spanning_.local_index());
    std::vector<const std::byte*> sources;
    std::vector<double> factors;
    for (const Exposed& peer : inputs) {
      LOCKSTEP_ASSIGN(const std::byte* bytes, peer.window(at, size));
      sources.push_back(bytes);
      factors.push_back(peer.header.factor);
    }
    const std::size_t bytes = slice.count() * element_;
    LOCKSTEP_TRY(run_lane(sources, factors, comes_by ? rounds.staging().first(bytes) : ByteSpan(), {},
                          pieces_of(slice, 0, 0)));
    rounds.post_staged(comes_by ? bytes : 0, size);
  } else {
    rounds.post_nothing();
  }
  LOCKSTEP_ASSIGN(const std::vector<Exposed> slices, rounds.await_all());
  for (int lane = 0; lane < lanes_; ++lane) {
    const Slice slice = slice_of(count, element_, lanes_, lane);
    const std::size_t slice_at = at + slice.begin * element_;
    const std::size_t begin = std::max(slice_at, share_.at);
    const std::size_t end = std::min(at + slice.end * element_, share_.at + share_.bytes.size());
    if (begin >= end) continue;
    LOCKSTEP_ASSIGN(const std::byte* from, slices[static_cast<std::size_t>(lane)].window(0, end - slice_at));
    std::memcpy(share_.bytes.data() + (begin - share_.at), from + (begin - slice_at), end - begin);
  }
  return {};
}

Status Chain::run_lane(std::span<const std::byte* const> sources, std::span<const double> factors,
                       ByteSpan result, std::span<std::byte* const> others,
                       const std::vector<Piece>& pieces) {
  const Deadline& deadline = spanning_.deadline_;
  const bool first = previous_ < 0;
  const bool last = next_ < 0;
  const bool passes_back = spanning_.host() > until_;
  const std::size_t chunks = pieces.size();
  const auto result_of = [&](std::size_t c) {
    return result.subspan(pieces[c].to * element_, pieces[c].count * element_);
  };
  const std::size_t ring = std::min(chunks, kAhead) * chunk_ * carry_;
  Buffer coming(first ? 0 : ring);
  Buffer going(last ? 0 : ring);
  const auto slot = [&](Buffer& in, std::size_t c) {
    return ByteSpan(in).subspan(c % kAhead * chunk_ * carry_, pieces[c].count * carry_);
  };

  std::vector<Ticket> carried;
  std::vector<Ticket> sent;
  std::vector<Ticket> results;
  std::vector<Ticket> passed;
  const auto expect_carry = [&](std::size_t c) -> Status {
    LOCKSTEP_ASSIGN(carried.emplace_back(), links_.recv(previous_, slot(coming, c), deadline));
    return {};
  };
  for (std::size_t c = 0; !first && c < std::min(chunks, kAhead); ++c) LOCKSTEP_TRY(expect_carry(c));
  // They may lie where the sources do: none comes, and nothing is written there, before its chunk is folded.
  for (std::size_t c = 0; !last && !result.empty() && c < chunks; ++c) {
    LOCKSTEP_ASSIGN(results.emplace_back(), links_.recv(next_, result_of(c), deadline));
  }
  // A result that has come, or was made here.
  const auto pass_on = [&](std::size_t c) -> Status {
    for (std::byte* const other : others)
      std::memcpy(other + pieces[c].to * element_, result_of(c).data(), result_of(c).size());
    if (!passes_back) return {};
    LOCKSTEP_ASSIGN(passed.emplace_back(), links_.send(previous_, result_of(c), deadline));
    return links_.progress();
  };

  Fold how = spanning_.fold_with(factors);
  std::vector<double> with_carry;
  if (!first) {
    how.first = Fold::Form::kCarry;
    with_carry.push_back(1);
    with_carry.insert(with_carry.end(), factors.begin(), factors.end());
    how.factors = with_carry;
  }
  if (!last) how.result = Fold::Form::kCarry;
  std::size_t back = 0;  // results that have come, and gone on
  const auto pass_on_what_has_come = [&]() -> Status {
    for (; back < results.size() && links_.done(results[back]); ++back) LOCKSTEP_TRY(pass_on(back));
    return {};
  };
  // The host before may wait for results before it sends the next carry.
  const auto wait_for_carry = [&](std::size_t c) -> Status {
    while (!links_.done(carried[c])) {
      std::vector<Ticket> either{carried[c]};
      if (back < results.size()) either.push_back(results[back]);
      LOCKSTEP_TRY(links_.wait_for_one(either, deadline));
      LOCKSTEP_TRY(pass_on_what_has_come());
    }
    return {};
  };
  for (std::size_t c = 0; c < chunks; ++c) {
    std::vector<const std::byte*> from;
    if (!first) {
      LOCKSTEP_TRY(wait_for_carry(c));
      from.push_back(slot(coming, c).data());
    }
    for (const std::byte* source : sources) from.push_back(source + pieces[c].from * element_);
    if (!last && c >= kAhead) LOCKSTEP_TRY(links_.wait(sent[c - kAhead], deadline));
    std::byte* const to = last ? result_of(c).data() : slot(going, c).data();
    fold(how, from, {&to, 1}, pieces[c].count);
    if (!first && c + kAhead < chunks) LOCKSTEP_TRY(expect_carry(c + kAhead));
    if (last) {
      LOCKSTEP_TRY(pass_on(c));
      continue;
    }
    LOCKSTEP_ASSIGN(sent.emplace_back(), links_.send(next_, slot(going, c), deadline));
    LOCKSTEP_TRY(links_.progress());
    LOCKSTEP_TRY(pass_on_what_has_come());
  }
  for (; back < results.size(); ++back) {
    LOCKSTEP_TRY(links_.wait(results[back], deadline));
    LOCKSTEP_TRY(pass_on(back));
  }
  for (const Ticket& ticket : sent) LOCKSTEP_TRY(links_.wait(ticket, deadline));
  for (const Ticket& ticket : passed) LOCKSTEP_TRY(links_.wait(ticket, deadline));
  return {};
}

}  // namespace lockstep::collective
