#include "lockstep/collective/tuning.h"

#include <algorithm>

namespace lockstep::collective {

Tuning tuning_from(const Timings& timings, int ranks) {
  // A core for every rank, and yet so slow: two of them shared one, and nothing has crossed between cores.
  constexpr std::uint64_t kTooLong = 5000;
  const bool misled = static_cast<std::uint64_t>(ranks) <= timings.cores && timings.round > kTooLong;
  // Past the cache costs half as much again where that is wrong, and cached five times as much.
  if (misled) return {.copy_ways = {CopyWay::kCached, CopyWay::kPastCache, CopyWay::kPastCache}};
  Tuning tuning;
  for (std::size_t i = 0; i < kTimedSizes.size(); ++i) {
    const auto [cached, past_cache] = timings.copy[i];
    const bool wins = past_cache * 10 < cached * 9;  // by more than the noise
    tuning.copy_ways[i] = wins ? CopyWay::kPastCache : CopyWay::kCached;
  }
  // A round that took longer had bad luck, which the next ones need not have.
  constexpr double kLeast = 1 << 10;
  constexpr double kMost = 128 << 10;
  constexpr std::size_t kAt = 0;  // what a round is weighed against is small
  const double rate = static_cast<double>(kTimedSizes[kAt]) /
                      static_cast<double>(std::max<std::uint64_t>(1, timings.read[kAt]));
  // More ranks than cores: each reads for its share of the time.
  const double share =
      std::min(1., static_cast<double>(timings.cores) / static_cast<double>(std::max(1, ranks)));
  const double bytes = static_cast<double>(timings.round) * rate * share;
  tuning.round_bytes = static_cast<std::size_t>(std::clamp(bytes, kLeast, kMost));
  return tuning;
}

}  // namespace lockstep::collective
