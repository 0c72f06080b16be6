// The symmetric heap: the part of a Segment that its owner hands out.
//
// Peers find what lies in it by offset; an offset is the same in every mapping. Memory grows by reserving
// pages in the owner, with no second exchange of descriptors. Asking the system whether the memory is there
// takes longer than most ranges are worth: so pages are reserved kAhead at a time, if there are so many, and
// small ranges come from pages that are real already.
//
// Thread safety: any thread.
// Ownership: a Heap owns its Segment; a range belongs to the caller until free(). A range that peers may
// still be reading must not be freed before they have said that they are done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "lockstep/transport/shm/allocator.h"
#include "lockstep/transport/shm/range_set.h"
#include "lockstep/transport/shm/segment.h"

namespace lockstep::transport::shm {

class Heap {
 public:
  struct Range {
    std::uint64_t offset = 0;
    std::byte* data = nullptr;
  };

  static constexpr Bytes kAhead = Bytes::mib(2);

  explicit Heap(Segment segment);

  // Zeroed pages or reused ones: the contents are unspecified. kNoSpace if there is no room or no memory.
  Result<Range> allocate(Bytes size, std::uint64_t alignment = RangeAllocator::kGrain);
  // Large ranges give their pages back.
  void free(std::uint64_t offset);
  // Where `pointer` lies, if [pointer, pointer + size) is inside the heap.
  std::optional<std::uint64_t> offset_of(const void* pointer, Bytes size) const;

  // After a failure, before any range is used again: fresh pages at the same addresses (Segment::move_house).
  Status move_house();

  std::byte* data() const { return segment_.data(); }
  Bytes capacity() const { return segment_.capacity(); }
  int fd() const { return segment_.fd(); }
  Bytes used() const;

 private:
  // Makes the pages of a range real. After an error nothing has changed.
  Status make_real(std::uint64_t offset, Bytes size) LOCKSTEP_REQUIRES(mutex_);
  void give_back(RangeSet::Range pages) LOCKSTEP_REQUIRES(mutex_);

  mutable Mutex mutex_;
  Segment segment_;
  RangeAllocator ranges_ LOCKSTEP_GUARDED_BY(mutex_);
  RangeSet real_ LOCKSTEP_GUARDED_BY(mutex_);  // offsets whose pages are real, in whole pages
};

}  // namespace lockstep::transport::shm
