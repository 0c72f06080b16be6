// Hands out ranges of an address space that it never touches: the bookkeeping of a shared heap, kept in
// private memory so that no peer can damage it.
//
// Thread safety: none; the heap that owns it has the lock.
// Does not: touch the memory it describes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "lockstep/base/types.h"

namespace lockstep::transport::shm {

class RangeAllocator {
 public:
  // Every range starts at a multiple of this: a cache line, twice, so that a prefetched neighbour is nobody
  // else's.
  static constexpr std::uint64_t kGrain = 128;

  explicit RangeAllocator(Bytes capacity);

  // The lowest range that fits, so that the pages in use stay together. Size 0 counts as 1. `alignment` is a
  // power of two. Empty if nothing fits.
  std::optional<std::uint64_t> allocate(Bytes size, std::uint64_t alignment = kGrain);
  // The size that was handed out at `offset`, rounded up to the grain; 0 if `offset` was not handed out.
  // Needs no memory.
  Bytes free(std::uint64_t offset);

  Bytes used() const { return used_; }
  Bytes capacity() const { return capacity_; }
  using Ranges = std::map<std::uint64_t, std::uint64_t>;  // offset -> size
  // All that are in use.
  const Ranges& taken() const { return taken_; }
  // How large a range could be handed out now.
  Bytes largest_free() const;

 private:
  const Bytes capacity_;
  Bytes used_;
  Ranges free_;
  Ranges taken_;
};

}  // namespace lockstep::transport::shm
