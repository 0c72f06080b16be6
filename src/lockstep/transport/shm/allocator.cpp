#include "lockstep/transport/shm/allocator.h"

#include <algorithm>

namespace lockstep::transport::shm {
namespace {

std::uint64_t round_up(std::uint64_t value, std::uint64_t step) { return (value + step - 1) / step * step; }

}  // namespace

RangeAllocator::RangeAllocator(Bytes capacity) : capacity_(capacity.value / kGrain * kGrain) {
  if (capacity_.value > 0) free_.emplace(0, capacity_.value);
}

std::optional<std::uint64_t> RangeAllocator::allocate(Bytes size, std::uint64_t alignment) {
  if (size.value > capacity_.value) return std::nullopt;
  const std::uint64_t wanted = round_up(std::max<std::uint64_t>(size.value, 1), kGrain);
  const std::uint64_t step = std::max(alignment, kGrain);
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [offset, length] = *range;
    const std::uint64_t start = round_up(offset, step);
    if (start + wanted > offset + length) continue;
    free_.erase(range);
    if (start > offset) free_.emplace(offset, start - offset);
    if (start + wanted < offset + length) free_.emplace(start + wanted, offset + length - start - wanted);
    taken_.emplace(start, wanted);
    used_.value += wanted;
    return start;
  }
  return std::nullopt;
}

Bytes RangeAllocator::free(std::uint64_t offset) {
  Ranges::node_type taken = taken_.extract(offset);
  if (taken.empty()) return Bytes{0};
  const std::uint64_t size = taken.mapped();
  used_.value -= size;

  auto range = free_.insert(std::move(taken)).position;
  if (const auto next = std::next(range);
      next != free_.end() && range->first + range->second == next->first) {
    range->second += next->second;
    free_.erase(next);
  }
  if (range != free_.begin()) {
    const auto previous = std::prev(range);
    if (previous->first + previous->second == range->first) {
      previous->second += range->second;
      free_.erase(range);
    }
  }
  return Bytes{size};
}

Bytes RangeAllocator::largest_free() const {
  std::uint64_t largest = 0;
  for (const auto& [offset, size] : free_) largest = std::max(largest, size);
  return Bytes{largest};
}

}  // namespace lockstep::transport::shm
