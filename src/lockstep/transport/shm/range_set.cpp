#include "lockstep/transport/shm/range_set.h"

#include <algorithm>

namespace lockstep::transport::shm {

void RangeSet::add(Range range) {
  if (range.first >= range.end) return;
  auto next = ranges_.lower_bound(range.first);
  if (next != ranges_.begin() && std::prev(next)->second >= range.first) --next;
  while (next != ranges_.end() && next->first <= range.end) {
    range.first = std::min(range.first, next->first);
    range.end = std::max(range.end, next->second);
    next = ranges_.erase(next);
  }
  ranges_.emplace(range.first, range.end);
}

void RangeSet::remove(Range range) {
  if (range.first >= range.end) return;
  auto next = ranges_.lower_bound(range.first);
  if (next != ranges_.begin() && std::prev(next)->second > range.first) --next;
  while (next != ranges_.end() && next->first < range.end) {
    const auto [first, end] = *next;
    next = ranges_.erase(next);
    if (first < range.first) ranges_.emplace(first, range.first);
    if (end > range.end) next = ranges_.emplace(range.end, end).first;
  }
}

std::optional<RangeSet::Range> RangeSet::first_gap(Range range, std::uint64_t limit) const {
  auto next = ranges_.upper_bound(range.first);
  if (next != ranges_.begin()) range.first = std::max(range.first, std::prev(next)->second);
  if (range.first >= range.end) return std::nullopt;
  range.end = std::max(range.end, limit);
  if (next != ranges_.end()) range.end = std::min(range.end, next->first);
  return range;
}

}  // namespace lockstep::transport::shm
