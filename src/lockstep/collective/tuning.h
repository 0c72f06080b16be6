// What the ranks of a host have measured about it, once, at the start. Pure: the same timings give every rank
// the same answer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace lockstep::collective {

// How a buffer that other cores have read is written again.
enum class CopyWay : std::uint8_t {
  kCached,     // plain stores: each line is first fetched back from the core that read it last
  kPastCache,  // non-temporal stores: it is not, but the reader finds it in memory
};
constexpr std::size_t kCopyWays = 2;

// The sizes at which copies are timed.
constexpr std::array<std::size_t, 3> kTimedSizes{std::size_t{4} << 10, std::size_t{64} << 10,
                                                 std::size_t{1} << 20};

// Which is faster differs by a factor of ten in either direction between processors, hence measured.
struct Tuning {
  std::array<CopyWay, kTimedSizes.size()> copy_ways{};  // that of the nearest size is used
  // What a rank reads from its peers in the time of one round: what a way with one round less may read more.
  std::size_t round_bytes = std::size_t{8} << 10;

  constexpr CopyWay copy_way(std::size_t bytes) const {
    std::size_t nearest = 0;
    // Half way between two sizes as factors go: each is 16 times the one before.
    while (nearest + 1 < kTimedSizes.size() && bytes >= kTimedSizes[nearest] * 4) ++nearest;
    return copy_ways[nearest];
  }
  bool operator==(const Tuning&) const = default;
};

// In nanoseconds; the best of several.
struct Timings {
  std::uint64_t round = 0;
  std::array<std::uint64_t, kTimedSizes.size()> read{};  // by a peer, after the better of the two ways
  // One rank writes, another reads, and the first one knows it.
  std::array<std::array<std::uint64_t, kCopyWays>, kTimedSizes.size()> copy{};
  std::uint64_t cores = 1;
};

Tuning tuning_from(const Timings& timings, int ranks);

}  // namespace lockstep::collective
