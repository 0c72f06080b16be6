#include "lockstep/collective/local.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/text.h"
#include "lockstep/collective/helpers.h"
#include "lockstep/collective/local_round.h"
#include "lockstep/collective/selection.h"
#include "lockstep/collective/slices.h"

namespace lockstep::collective {
namespace {

// A block that is shared from where it belongs is there already, and peers may be reading it.
void copy(ByteSpan to, const std::byte* from) {
  if (!to.empty() && to.data() != from) std::memcpy(to.data(), from, to.size());
}

Fold fold_of(const Fingerprint& fingerprint, int ranks, std::span<const double> factors) {
  return {.type = fingerprint.dtype, .op = fingerprint.reduce_op, .ranks = ranks, .factors = factors};
}

std::vector<double> factors_of(std::span<const Exposed> peers) {
  std::vector<double> factors;
  for (const Exposed& peer : peers) factors.push_back(peer.header.factor);
  return factors;
}

// Fills `to` with what `from` exposes at `at`; `lane` is where our part of a window in parts begins.
Status take(ByteSpan to, const Exposed& from, std::size_t at, std::size_t lane = 0) {
  if (to.empty()) return {};
  LOCKSTEP_ASSIGN(const std::byte* bytes, from.window(at, lane + to.size()));
  copy(to, bytes + lane);
  return {};
}

// What a peer sends must be what this rank has room for.
Status expect_size(const LocalCall& call, Rank peer, Bytes sent, Bytes expected) {
  if (sent == expected) return {};
  return Status::invalid(cat("ranks disagree about a size: rank ", peer, " sends ", sent, ", rank ",
                             call.board.rank_of(call.board.index()), " expects ", expected),
                         {.failure = Failure::kDesync, .peer = peer});
}

// One round in which every rank that has `parts` shows their sizes; what the others hold for us is compared
// with what we have room for.
Status compare_sizes(const LocalCall& call, std::span<const ByteView> parts,
                     std::span<const ByteSpan> outputs) {
  LocalRounds rounds(call);
  LOCKSTEP_TRY(rounds.open());
  const std::size_t size = parts.size() * sizeof(std::uint64_t);
  if (size > rounds.staging_size())
    return Status::unsupported(
        cat("the staging buffer is too small for the sizes of ", parts.size(), " parts"));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::uint64_t bytes = parts[i].size();
    std::memcpy(rounds.staging().data() + i * sizeof(bytes), &bytes, sizeof(bytes));
  }
  rounds.post_staged(size, size);
  LOCKSTEP_ASSIGN(const std::vector<Exposed> peers, rounds.await_all());
  for (std::size_t i = 0; i < peers.size(); ++i) {
    if (peers[i].header.total == 0) continue;
    const auto own = static_cast<std::size_t>(rounds.index());
    LOCKSTEP_ASSIGN(const std::byte* table, peers[i].window(0, (own + 1) * sizeof(std::uint64_t)));
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, table + own * sizeof(bytes), sizeof(bytes));
    const ByteSpan room = outputs.size() == 1 ? outputs[0] : outputs[i];
    LOCKSTEP_TRY(expect_size(call, peers[i].rank, Bytes{bytes}, Bytes{room.size()}));
  }
  return {};
}

// All parts, if they are of one size and follow each other.
std::optional<ByteView> side_by_side(std::span<const ByteView> parts) {
  if (parts.empty()) return std::nullopt;
  const std::size_t size = parts[0].size();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].size() != size || parts[i].data() != parts[0].data() + i * size) return std::nullopt;
  }
  return ByteView(parts[0].data(), size * parts.size());
}

// Walks through an exposure in windows: every rank exposes `parts` (one, or one for each rank), in each round
// a window of each part. `use(at, width, peers)` sees the windows that begin at `at` of the parts for us.
class Pull {
 public:
  Pull(const LocalCall& call, std::span<const ByteView> parts, int lanes)
      : call_(call), rounds_(call), parts_(parts), lanes_(static_cast<std::size_t>(lanes)) {
    for (const ByteView part : parts_) total_ = std::max(total_, part.size());
    const std::size_t grain = 64 * size_of(call.fingerprint.dtype);
    width_ = rounds_.staging_size() / lanes_ / grain * grain;
    if (const auto whole = side_by_side(parts_)) {
      whole_ = whole->size();
      resident_ = rounds_.resident_offset(*whole);
    }
  }

  // All ranks are sources: everyone sees every posting in every round.
  template <typename Use>
  Status from_all(Use use) {
    bool any_resident = false;
    std::size_t total = 0;
    for (std::size_t at = 0; at == 0 || at < total; at += width_) {
      LOCKSTEP_TRY(expose(at));
      LOCKSTEP_ASSIGN(const std::vector<Exposed> peers, rounds_.await_all());
      bool all_resident = true;
      for (const Exposed& peer : peers) {
        total = std::max<std::size_t>(total, peer.header.total);
        any_resident |= peer.resident();
        all_resident &= peer.resident() || peer.header.total == 0;
      }
      if (all_resident) {
        LOCKSTEP_TRY(use(std::size_t{0}, total, peers));
        break;
      }
      LOCKSTEP_TRY(use(at, width_, peers));
    }
    return any_resident ? rounds_.close(true) : Status();
  }

  // The root is the only source; it waits for nobody unless its buffer is resident.
  template <typename Use>
  Status from_root(int root, Use use) {
    bool resident = resident_.has_value();
    std::size_t total = total_;
    for (std::size_t at = 0; at == 0 || at < total; at += width_) {
      LOCKSTEP_TRY(expose(at));
      if (rounds_.index() == root) {
        if (resident) break;
        continue;
      }
      LOCKSTEP_ASSIGN(const Exposed peer, rounds_.await_root(root));
      total = peer.header.total;
      resident = peer.resident();
      LOCKSTEP_TRY(use(resident ? 0 : at, resident ? total : width_, peer));
      if (resident) break;
    }
    return resident ? rounds_.close(rounds_.index() == root) : Status();
  }

  // Where the part for `lane`, or its window, begins in a posting.
  std::size_t lane_offset(int lane, const Exposed& from) const {
    if (lanes_ == 1) return 0;
    return static_cast<std::size_t>(lane) * (from.resident() ? from.header.total : width_);
  }

 private:
  Status expose(std::size_t at) {
    LOCKSTEP_TRY(rounds_.open());
    if (parts_.empty()) {
      rounds_.post_nothing();
      return {};
    }
    if (resident_) {
      rounds_.post_resident(*resident_, whole_, total_);
      return {};
    }
    const ByteSpan staging = rounds_.staging();
    for (std::size_t lane = 0; lane < parts_.size(); ++lane) {
      const ByteView part = parts_[lane];
      if (at >= part.size()) continue;
      copy_together(call_.means, staging.subspan(lane * width_, std::min(width_, part.size() - at)),
                    part.data() + at);
    }
    rounds_.post_staged(parts_.size() == 1 ? std::min(width_, total_ - std::min(at, total_)) : staging.size(),
                        total_);
    return {};
  }

  const LocalCall& call_;
  LocalRounds rounds_;
  std::span<const ByteView> parts_;
  std::size_t lanes_;
  std::size_t width_ = 0;
  std::size_t total_ = 0;
  std::size_t whole_ = 0;  // bytes of all parts, where they are side by side
  std::optional<std::uint64_t> resident_;
};

// The part of `out` that a window covers.
ByteSpan covered(ByteSpan out, std::size_t at, std::size_t width) {
  if (at >= out.size()) return {};
  return out.subspan(at, std::min(width, out.size() - at));
}

// All-reduce and reduce: the inputs in one round, the folded slices in the next.
class Reduction {
 public:
  // `output` is empty on a rank that does not want the result.
  Reduction(const LocalCall& call, ByteView input, ByteSpan output)
      : call_(call),
        rounds_(call),
        input_(input),
        output_(output),
        element_(size_of(call.fingerprint.dtype)) {
    resident_ = rounds_.resident_offset(input);
    const std::size_t grain = 64 * element_;
    width_ = rounds_.staging_size() / grain * grain;
  }

  // Reduce only.
  Status run_to(int root) {
    std::size_t size = std::min(width_, input_.size());
    LOCKSTEP_ASSIGN(std::vector<Exposed> inputs, expose_inputs(0, size));
    if (residents_of(inputs) == rounds_.size()) {
      LOCKSTEP_ASSIGN(std::byte* const result, place_of_result(root));
      if (result != nullptr) return fold_into(inputs, {&result, 1});
    }
    for (std::size_t at = 0;;) {
      LOCKSTEP_TRY(fold_and_share(inputs, at, size));
      at += size;
      if (at >= input_.size()) return {};
      size = std::min(width_, input_.size() - at);
      LOCKSTEP_ASSIGN(inputs, expose_inputs(at, size));
    }
  }

  // All-reduce only.
  Status run() {
    std::size_t size = std::min(width_, input_.size());
    LOCKSTEP_ASSIGN(std::vector<Exposed> inputs, expose_inputs(0, size));
    const auto residents = residents_of(inputs);
    if (residents == rounds_.size()) {
      std::vector<std::byte*> everywhere;
      for (const Exposed& peer : inputs) {
        LOCKSTEP_ASSIGN(everywhere.emplace_back(), peer.window(0, input_.size()));
      }
      return fold_into(inputs, everywhere);
    }
    // A resident buffer is read where it lies, so its owner must not write a result to it before all have
    // folded.
    const bool one_shot =
        residents == 0 && select_local_all_reduce(input_.size(), rounds_.size(),
                                                  call_.means.tuning.round_bytes) == LocalWay::kOneShot;
    for (std::size_t at = 0;;) {
      LOCKSTEP_TRY(one_shot ? fold_all(inputs, at, size) : fold_and_share(inputs, at, size));
      at += size;
      if (at >= input_.size()) return {};
      size = std::min(width_, input_.size() - at);
      LOCKSTEP_ASSIGN(inputs, expose_inputs(at, size));
    }
  }

 private:
  static std::ptrdiff_t residents_of(std::span<const Exposed> inputs) {
    return std::count_if(inputs.begin(), inputs.end(), [](const Exposed& peer) { return peer.resident(); });
  }

  Result<std::vector<Exposed>> expose_inputs(std::size_t at, std::size_t size) {
    LOCKSTEP_TRY(rounds_.open());
    if (resident_ && folds_in_place(input_.size(), rounds_.size(), call_.means.tuning.round_bytes)) {
      rounds_.post_resident(*resident_, input_.size(), input_.size());
    } else {
      copy_together(call_.means, rounds_.staging().first(size), input_.data() + at);
      rounds_.post_staged(size, input_.size());
    }
    return rounds_.await_all();
  }

  Status fold_slice(std::span<const Exposed> inputs, std::size_t at, Slice slice,
                    std::span<std::byte* const> to) const {
    const std::vector<double> factors = factors_of(inputs);
    std::vector<const std::byte*> sources;
    for (const Exposed& peer : inputs) {
      LOCKSTEP_ASSIGN(const std::byte* bytes, peer.window(at, slice.end * element_));
      sources.push_back(bytes + slice.begin * element_);
    }
    // Our own part is in our cache where it came from, and not where it was staged.
    sources[static_cast<std::size_t>(rounds_.index())] = input_.data() + at + slice.begin * element_;
    fold_together(call_.means.helpers, fold_of(call_.fingerprint, rounds_.size(), factors), sources, to,
                  slice.count());
    return {};
  }

  // Every rank folds all of the window.
  Status fold_all(std::span<const Exposed> inputs, std::size_t at, std::size_t size) {
    std::byte* const to = output_.data() + at;
    return fold_slice(inputs, at, {0, size / element_}, {&to, 1});
  }

  // Where the root wants the result, in its heap; nullptr if that is not in shared memory.
  Result<std::byte*> place_of_result(int root) {
    LOCKSTEP_TRY(rounds_.open());
    if (const auto offset = rounds_.resident_offset(output_)) {
      rounds_.post_resident(*offset, output_.size(), output_.size());
    } else {
      rounds_.post_nothing();
    }
    LOCKSTEP_ASSIGN(const Exposed posted, rounds_.await_root(root));
    if (!posted.resident()) return nullptr;
    return posted.window(0, input_.size());
  }

  // Every rank writes its slice of the result into each of these buffers, which all have it whole. The inputs
  // are resident, all of them.
  Status fold_into(std::span<const Exposed> inputs, std::span<std::byte* const> results) {
    const Slice slice = slice_of(input_.size() / element_, element_, rounds_.size(), rounds_.index());
    std::vector<std::byte*> to(results.begin(), results.end());
    for (std::byte*& at : to) at += slice.begin * element_;
    LOCKSTEP_TRY(fold_slice(inputs, 0, slice, to));
    return rounds_.close(true);
  }

  // Folds our slice of the window, shows it to the others, and takes theirs.
  Status fold_and_share(std::span<const Exposed> inputs, std::size_t at, std::size_t size) {
    const std::size_t count = size / element_;
    const Slice own = slice_of(count, element_, rounds_.size(), rounds_.index());
    LOCKSTEP_TRY(rounds_.open());
    std::byte* const to = rounds_.staging().data();
    LOCKSTEP_TRY(fold_slice(inputs, at, own, {&to, 1}));
    rounds_.post_staged(own.count() * element_, input_.size());
    // Also on a rank that wants no result: once all have posted, nobody reads this window of our input any
    // more.
    LOCKSTEP_ASSIGN(const std::vector<Exposed> slices, rounds_.await_all());
    if (output_.empty()) return {};
    for (int peer = 0; peer < rounds_.size(); ++peer) {
      const Slice slice = slice_of(count, element_, rounds_.size(), peer);
      LOCKSTEP_TRY(take(output_.subspan(at + slice.begin * element_, slice.count() * element_),
                        slices[static_cast<std::size_t>(peer)], 0));
    }
    return {};
  }

  const LocalCall& call_;
  LocalRounds rounds_;
  const ByteView input_;
  const ByteSpan output_;
  const std::size_t element_;
  std::size_t width_ = 0;
  std::optional<std::uint64_t> resident_;
};

}  // namespace

Status local_barrier(const LocalCall& call) {
  const auto run = [&]() -> Status {
    LocalRounds rounds(call);
    LOCKSTEP_TRY(rounds.open());
    rounds.post_nothing();
    return rounds.await_all().status();
  };
  return settle(call, run());
}

Status local_all_reduce(const LocalCall& call, ByteSpan data) {
  return settle(call, Reduction(call, data, data).run());
}

Status local_reduce(const LocalCall& call, ByteView input, ByteSpan output) {
  const bool is_root = call.board.index() == call.root;
  return settle(call, Reduction(call, input, is_root ? output : ByteSpan()).run_to(call.root));
}

Status local_reduce_scatter(const LocalCall& call, std::span<const ByteView> inputs, ByteSpan output) {
  const int ranks = call.board.size();
  Pull pull(call, inputs, ranks);
  const auto use = [&](std::size_t at, std::size_t width, std::span<const Exposed> peers) -> Status {
    const ByteSpan out = covered(output, at, width);
    const std::vector<double> factors = factors_of(peers);
    std::vector<const std::byte*> sources;
    for (const Exposed& peer : peers) {
      const std::size_t lane = pull.lane_offset(call.board.index(), peer);
      LOCKSTEP_ASSIGN(const std::byte* bytes, peer.window(at, lane + out.size()));
      sources.push_back(bytes + lane);
    }
    std::byte* const to = out.data();
    fold_together(call.means.helpers, fold_of(call.fingerprint, ranks, factors), sources, {&to, 1},
                  out.size() / size_of(call.fingerprint.dtype));
    return {};
  };
  return settle(call, pull.from_all(use));
}

Status local_broadcast(const LocalCall& call, ByteSpan data) {
  const bool is_root = call.board.index() == call.root;
  const ByteView part = data;
  Pull pull(call, is_root ? std::span(&part, 1) : std::span<const ByteView>(), 1);
  const auto use = [&](std::size_t at, std::size_t width, const Exposed& root) {
    return take(covered(data, at, width), root, at);
  };
  return settle(call, pull.from_root(call.root, use));
}

Status local_all_gather(const LocalCall& call, ByteView input, std::span<const ByteSpan> outputs) {
  Pull pull(call, {&input, 1}, 1);
  const auto use = [&](std::size_t at, std::size_t width, std::span<const Exposed> peers) -> Status {
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      LOCKSTEP_TRY(expect_size(call, peers[i].rank, Bytes{peers[i].header.total}, Bytes{outputs[i].size()}));
      LOCKSTEP_TRY(take(covered(outputs[i], at, width), peers[i], at));
    }
    return {};
  };
  return settle(call, pull.from_all(use));
}

Status local_gather(const LocalCall& call, ByteView input, std::span<const ByteSpan> outputs) {
  const bool is_root = call.board.index() == call.root;
  return local_all_gather(call, input, is_root ? outputs : std::span<const ByteSpan>());
}

Status local_scatter(const LocalCall& call, std::span<const ByteView> inputs, ByteSpan output) {
  const int root = call.root;
  const int index = call.board.index();
  if (index != root) inputs = {};
  LOCKSTEP_TRY(settle(call, compare_sizes(call, inputs, {&output, 1})));
  Pull pull(call, inputs, call.board.size());
  if (index == root) copy(output, inputs[static_cast<std::size_t>(root)].data());
  const auto use = [&](std::size_t at, std::size_t width, const Exposed& from) {
    return take(covered(output, at, width), from, at, pull.lane_offset(index, from));
  };
  return settle(call, pull.from_root(root, use));
}

Status local_all_to_all(const LocalCall& call, std::span<const ByteView> inputs,
                        std::span<const ByteSpan> outputs) {
  // With equal parts the fingerprints have said it.
  if (call.fingerprint.detail != 0) LOCKSTEP_TRY(settle(call, compare_sizes(call, inputs, outputs)));
  Pull pull(call, inputs, call.board.size());
  const auto use = [&](std::size_t at, std::size_t width, std::span<const Exposed> peers) -> Status {
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const std::size_t lane = pull.lane_offset(call.board.index(), peers[i]);
      LOCKSTEP_TRY(take(covered(outputs[i], at, width), peers[i], at, lane));
    }
    return {};
  };
  return settle(call, pull.from_all(use));
}

}  // namespace lockstep::collective
