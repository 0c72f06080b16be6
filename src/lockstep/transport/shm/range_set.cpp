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
  if (next != ranges_.begin()) {
    const auto before = std::prev(next);
    const std::uint64_t end = before->second;
    if (end > range.end) ranges_.emplace(range.end, end);  // what may throw comes first
    before->second = std::min(end, range.first);
  }
  while (next != ranges_.end() && next->first < range.end) {
    if (next->second <= range.end) {
      next = ranges_.erase(next);
    } else {
      auto rest = ranges_.extract(next);
      rest.key() = range.end;
      next = ranges_.insert(std::move(rest)).position;
    }
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
