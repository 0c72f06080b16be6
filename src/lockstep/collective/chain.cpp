#include "lockstep/collective/chain.h"

#include <algorithm>
#include <cstring>

#include "lockstep/collective/local_round.h"
#include "lockstep/collective/slices.h"

namespace lockstep::collective {
namespace {

constexpr std::size_t kChunk = std::size_t{128} << 10;  // bytes of carry
constexpr std::size_t kAhead = 8;                       // chunks that may be under way

}  // namespace

Chain::Chain(Spanning& spanning, ByteView input, ByteSpan output, int until)
    : spanning_(spanning),
      links_(spanning.links_),
      input_(input),
      output_(output),
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

Status Chain::run() {
  const auto& hosts = spanning_.layout_.hosts;
  const bool staged =
      std::any_of(hosts.begin(), hosts.end(), [](const auto& members) { return members.size() > 1; });
  if (!staged) {
    const double factor = spanning_.factor_;
    const std::byte* const source = input_.data();
    // A host that only passes the result on has no place for it.
    Buffer passing;
    if (output_.empty() && spanning_.host() >= until_) passing.resize(input_.size());
    const ByteSpan result = output_.empty() ? ByteSpan(passing) : output_;
    return run_lane({&source, 1}, {&factor, 1}, result, input_.size() / element_);
  }
  const std::size_t grain = 64 * element_;
  const std::size_t window = spanning_.communicator_.board().staging().size() / grain * grain;
  for (std::size_t at = 0; at < input_.size(); at += window)
    LOCKSTEP_TRY(run_window(at, std::min(window, input_.size() - at)));
  return {};
}

Status Chain::run_window(std::size_t at, std::size_t size) {
  const LocalCall call = spanning_.local();
  LocalRounds rounds(call);
  LOCKSTEP_TRY(rounds.open());
  std::memcpy(rounds.staging().data(), input_.data() + at, size);
  rounds.post_staged(size, size);
  LOCKSTEP_ASSIGN(const std::vector<Exposed> inputs, rounds.await_all());

  LOCKSTEP_TRY(rounds.open());
  const std::size_t count = size / element_;
  const bool comes_by = spanning_.host() >= until_;
  if (spanning_.local_index() < lanes_) {
    const Slice slice = slice_of(count, element_, lanes_, spanning_.local_index());
    std::vector<const std::byte*> sources;
    std::vector<double> factors;
    for (const Exposed& peer : inputs) {
      LOCKSTEP_ASSIGN(const std::byte* bytes, peer.window(0, size));
      sources.push_back(bytes + slice.begin * element_);
      factors.push_back(peer.header.factor);
    }
    const std::size_t bytes = slice.count() * element_;
    LOCKSTEP_TRY(
        run_lane(sources, factors, comes_by ? rounds.staging().first(bytes) : ByteSpan(), slice.count()));
    rounds.post_staged(comes_by ? bytes : 0, size);
  } else {
    rounds.post_nothing();
  }
  LOCKSTEP_ASSIGN(const std::vector<Exposed> slices, rounds.await_all());
  if (output_.empty()) return {};
  for (int lane = 0; lane < lanes_; ++lane) {
    const Slice slice = slice_of(count, element_, lanes_, lane);
    if (slice.count() == 0) continue;
    const std::size_t bytes = slice.count() * element_;
    LOCKSTEP_ASSIGN(const std::byte* from, slices[static_cast<std::size_t>(lane)].window(0, bytes));
    std::memcpy(output_.data() + at + slice.begin * element_, from, bytes);
  }
  return {};
}

Status Chain::run_lane(std::span<const std::byte* const> sources, std::span<const double> factors,
                       ByteSpan result, std::size_t count) {
  const Deadline& deadline = spanning_.deadline_;
  const bool first = previous_ < 0;
  const bool last = next_ < 0;
  const bool passes_back = spanning_.host() > until_;
  const std::size_t chunks = (count + chunk_ - 1) / chunk_;
  const auto elements = [&](std::size_t c) { return std::min(chunk_, count - c * chunk_); };
  const auto result_of = [&](std::size_t c) {
    return result.subspan(c * chunk_ * element_, elements(c) * element_);
  };
  const std::size_t ring = std::min(chunks, kAhead) * chunk_ * carry_;
  Buffer coming(first ? 0 : ring);
  Buffer going(last ? 0 : ring);
  const auto slot = [&](Buffer& in, std::size_t c) {
    return ByteSpan(in).subspan(c % kAhead * chunk_ * carry_, elements(c) * carry_);
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
  for (std::size_t c = 0; !last && !result.empty() && c < chunks; ++c) {
    LOCKSTEP_ASSIGN(results.emplace_back(), links_.recv(next_, result_of(c), deadline));
  }
  const auto pass_back = [&](std::size_t c) -> Status {
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
  for (std::size_t c = 0; c < chunks; ++c) {
    std::vector<const std::byte*> from;
    if (!first) {
      LOCKSTEP_TRY(links_.wait(carried[c], deadline));
      from.push_back(slot(coming, c).data());
    }
    for (const std::byte* source : sources) from.push_back(source + c * chunk_ * element_);
    if (!last && c >= kAhead) LOCKSTEP_TRY(links_.wait(sent[c - kAhead], deadline));
    std::byte* const to = last ? result_of(c).data() : slot(going, c).data();
    fold(how, from, {&to, 1}, elements(c));
    if (!first && c + kAhead < chunks) LOCKSTEP_TRY(expect_carry(c + kAhead));
    if (last) {
      LOCKSTEP_TRY(pass_back(c));
      continue;
    }
    LOCKSTEP_ASSIGN(sent.emplace_back(), links_.send(next_, slot(going, c), deadline));
    LOCKSTEP_TRY(links_.progress());
    for (; back < results.size() && links_.done(results[back]); ++back) LOCKSTEP_TRY(pass_back(back));
  }
  for (; back < results.size(); ++back) {
    LOCKSTEP_TRY(links_.wait(results[back], deadline));
    LOCKSTEP_TRY(pass_back(back));
  }
  for (const Ticket& ticket : sent) LOCKSTEP_TRY(links_.wait(ticket, deadline));
  for (const Ticket& ticket : passed) LOCKSTEP_TRY(links_.wait(ticket, deadline));
  return {};
}

}  // namespace lockstep::collective
