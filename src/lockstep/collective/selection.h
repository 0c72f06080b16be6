// Which way a reduction takes. Pure: every rank comes to the same answer. The cores are no argument: hosts
// may have different numbers of them, and what they change is how long a round takes, which is in the
// measured constant, and how a rank waits and folds (occupancy.h, helper_pool.h), which nobody else sees.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/transport/layout.h"

namespace lockstep::collective {

enum class LocalWay : std::uint8_t {
  kOneShot,  // every rank folds everything: one round per window, n times the reading
  kTwoShot,  // every rank folds its slice and takes the others': two rounds per window
};

// For buffers that are not in shared memory. A one-shot reads n·S, a two-shot 2·S and waits for one more
// round, in which `round_bytes` could be read (tuning.h).
constexpr LocalWay select_local_all_reduce(std::size_t bytes, int ranks, std::size_t round_bytes) {
  if (ranks <= 2 || bytes <= round_bytes / static_cast<std::size_t>(ranks - 2)) return LocalWay::kOneShot;
  return LocalWay::kTwoShot;
}

// Whether a buffer in shared memory is folded where it lies, which touches 2·S in two rounds. Staged, it is
// copied and n·S are read, in one.
constexpr bool folds_in_place(std::size_t bytes, int ranks, std::size_t round_bytes) {
  return bytes > round_bytes / static_cast<std::size_t>(ranks > 1 ? ranks - 1 : 1);
}

enum class SpanningWay : std::uint8_t {
  kRaw,       // every rank has all contributions, and folds them itself
  kSwap,      // two ranks on two hosts: chunks cross, both fold
  kChain,     // the running value goes from host to host, and the result back
  kExchange,  // every rank folds one slice, of raw contributions
};

// The order is the same left fold whichever is chosen; what differs is latency and bytes. n ranks, S bytes:
//   kRaw       one exchange; n·S received per host. For S so small that latency is all.
//   kSwap      S per direction: the floor for two.
//   kChain     S per host and direction (twice that in the middle); needs hosts whose ranks follow each
//   other. kExchange  about 2·k·S per host and direction, k ranks on a host. For every other layout.
inline SpanningWay select_all_reduce(std::size_t bytes, const transport::Layout& layout) {
  constexpr std::size_t kRawLimit = std::size_t{64} << 10;
  if (layout.size() == 2) return SpanningWay::kSwap;
  if (bytes * static_cast<std::size_t>(layout.size()) <= kRawLimit) return SpanningWay::kRaw;
  return layout.contiguous() ? SpanningWay::kChain : SpanningWay::kExchange;
}

// Of a reduce_scatter of `bytes` of input on each rank, a running value being `carry` times as large as an
// element: kChain or kExchange. What the busiest host sends, H hosts, k of n ranks on it:
//   kExchange  k·(n-k)/n·S, each contribution to who folds it.
//   kChain     carry·S upwards, and (H-2)/H·S back; with more rounds.
inline SpanningWay select_reduce_scatter(std::size_t bytes, std::size_t carry,
                                         const transport::Layout& layout) {
  constexpr std::size_t kRoundsLimit = std::size_t{64} << 10;
  if (bytes <= kRoundsLimit || !layout.contiguous()) return SpanningWay::kExchange;
  const auto n = static_cast<std::size_t>(layout.size());
  const auto hosts = static_cast<std::size_t>(layout.host_count());
  std::size_t exchanged = 0;
  for (const std::vector<int>& members : layout.hosts)
    exchanged = std::max(exchanged, members.size() * (n - members.size()));
  return exchanged * hosts > n * (carry * hosts + hosts - 2) ? SpanningWay::kChain : SpanningWay::kExchange;
}

}  // namespace lockstep::collective
