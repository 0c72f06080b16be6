// Remembers the last ids that it was told, and forgets older ones. Its memory is taken when it is made.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::transport {

class RecentIds {
 public:
  explicit RecentIds(std::size_t most) : most_(most) { ids_.reserve(most); }

  void add(std::uint64_t id) {
    if (contains(id)) return;
    if (ids_.size() == most_) ids_.erase(ids_.begin());
    ids_.push_back(id);
  }
  void remove(std::uint64_t id) { std::erase(ids_, id); }
  bool contains(std::uint64_t id) const { return std::ranges::find(ids_, id) != ids_.end(); }
  std::size_t size() const { return ids_.size(); }

 private:
  const std::size_t most_;
  std::vector<std::uint64_t> ids_;  // the oldest first
};

}  // namespace lockstep::transport
