#include "lockstep/collective/local.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/text.h"
#include "lockstep/collective/helpers.h"
#include "lockstep/collective/local_round.h"

namespace lockstep::collective {
namespace {

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
  // As a part of another operation its sizes are known to fit.
  if (call.fingerprint.kind == OpKind::kAllToAll)
    LOCKSTEP_TRY(settle(call, compare_sizes(call, inputs, outputs)));
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
