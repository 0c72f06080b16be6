// A set of numbers, kept as ranges: which pages of a segment are real.
//
// Thread safety: none; whoever owns it has the lock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace lockstep::transport::shm {

class RangeSet {
 public:
  struct Range {
    std::uint64_t first = 0;
    std::uint64_t end = 0;  // the first that is not in it
  };

  // What is in it already stays.
  void add(Range range);
  // Without memory it throws std::bad_alloc and has changed nothing.
  void remove(Range range);
  // The lowest numbers of `range` that are not in the set, as far as they follow each other; also those
  // behind the end of `range`, up to `limit`. Nothing if all of `range` is in the set.
  std::optional<Range> first_gap(Range range, std::uint64_t limit) const;

 private:
  std::map<std::uint64_t, std::uint64_t> ranges_;  // first -> end; no two of them touch
};

}  // namespace lockstep::transport::shm
