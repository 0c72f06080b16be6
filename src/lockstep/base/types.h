// Strong types for the numbers that are easily mixed up.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

namespace lockstep::base {

// A process's place in a world or group, 0-based.
struct Rank {
  constexpr Rank() = default;
  constexpr explicit Rank(int rank) : value(rank) {}
  constexpr auto operator<=>(const Rank&) const = default;
  int value = 0;
};

// How many ranks a world or group has; at least 1 wherever one is used.
struct WorldSize {
  constexpr WorldSize() = default;
  constexpr explicit WorldSize(int size) : value(size) {}
  constexpr auto operator<=>(const WorldSize&) const = default;
  constexpr bool contains(Rank rank) const { return rank.value >= 0 && rank.value < value; }
  int value = 1;
};

// A number of bytes, so that a size is never taken for a count of elements.
struct Bytes {
  constexpr Bytes() = default;
  constexpr explicit Bytes(std::uint64_t bytes) : value(bytes) {}
  constexpr auto operator<=>(const Bytes&) const = default;
  static constexpr Bytes kib(std::uint64_t n) { return Bytes{n << 10}; }
  static constexpr Bytes mib(std::uint64_t n) { return Bytes{n << 20}; }
  static constexpr Bytes gib(std::uint64_t n) { return Bytes{n << 30}; }
  std::uint64_t value = 0;
};

}  // namespace lockstep::base

namespace lockstep {
using base::Bytes;
using base::Rank;
using base::WorldSize;
}  // namespace lockstep
