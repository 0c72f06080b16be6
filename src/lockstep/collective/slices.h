// How a buffer is cut among ranks. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace lockstep::collective {

// Elements [begin, end).
struct Slice {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t count() const { return end - begin; }
  bool operator==(const Slice&) const = default;
};

// Part `index` of `parts` of `count` elements. Parts are as equal as they can be when each but the last is a
// whole number of cache lines, so that no line has two writers; the last ones may be empty.
constexpr Slice slice_of(std::size_t count, std::size_t element_size, int parts, int index) {
  constexpr std::size_t kLine = 64;
  const std::size_t per_line = element_size >= kLine ? 1 : kLine / element_size;
  const std::size_t lines = (count + per_line - 1) / per_line;
  const auto n = static_cast<std::size_t>(parts);
  const auto i = static_cast<std::size_t>(index);
  const std::size_t begin = std::min(count, lines * i / n * per_line);
  const std::size_t end = std::min(count, lines * (i + 1) / n * per_line);
  return {begin, end};
}

// `size` bytes from `at`, as far as there are any.
template <typename Span>
constexpr Span part_of(Span bytes, std::size_t at, std::size_t size) {
  if (at >= bytes.size()) return {};
  return bytes.subspan(at, std::min(size, bytes.size() - at));
}

}  // namespace lockstep::collective
