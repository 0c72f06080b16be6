// Remembers the last ids that it was told, and forgets older ones, so that it never grows beyond its size.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>

namespace lockstep::transport {

class RecentIds {
 public:
  explicit RecentIds(std::size_t most) : most_(most) {}

  void add(std::uint64_t id) {
    if (!ids_.insert(id).second) return;
    order_.push_back(id);
    if (order_.size() <= most_) return;
    ids_.erase(order_.front());
    order_.pop_front();
  }
  void remove(std::uint64_t id) {
    if (ids_.erase(id) > 0) std::erase(order_, id);
  }
  bool contains(std::uint64_t id) const { return ids_.contains(id); }
  std::size_t size() const { return ids_.size(); }

 private:
  const std::size_t most_;
  std::set<std::uint64_t> ids_;
  std::deque<std::uint64_t> order_;  // the oldest first
};

}  // namespace lockstep::transport
