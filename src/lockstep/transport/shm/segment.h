// A Segment is one rank's shared memory: a sparse memfd, sized once, mapped whole by its owner and by every
// peer on the host.
//
// It has no name, so nothing is left behind when its processes die, however they die. It is sealed against
// shrinking and growing: no peer can make another one's access fault. Pages are made by reserve() in the
// owner, which asks first whether the memory is there: the kernel would answer with the OOM killer instead of
// an error. Neighbours that ask at the same moment all hear that it is. So each takes a step at a time, and
// asks before every step that a step of every neighbour has room beside it: whoever has asked last has seen
// all but one step of each of the others, and none of them waits for another.
//
// Thread safety: reserve(), release() and move_house() by one thread at a time; the memory itself is shared,
// and ordered by whoever uses it. Ownership: unmaps and closes at the end; the pages live until the last
// process has done so. Does not: know what is in it, or trust it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "lockstep/base/bytes.h"
#include "lockstep/base/process.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::transport::shm {

// What is free now; injected so that tests can be poor.
using MemoryProbe = std::function<Result<base::MemoryLimits>()>;

class Segment {
 public:
  // What reserve() takes at a time.
  static constexpr Bytes kStep = Bytes::mib(4);
  // Left to everybody else: a reservation that would take the last of the memory is refused.
  static constexpr Bytes kMargin = Bytes::mib(64);

  // For the owner. `label` shows in /proc/PID/maps. Takes address space, no memory. `neighbours`: how many
  // other segments may grow at the same time. kUnsupported where memfd_create is forbidden.
  static Result<Segment> create(std::string_view label, Bytes capacity, std::size_t neighbours = 0,
                                MemoryProbe probe = base::memory_limits);
  // For a rank that shares with nobody, where there is no memfd.
  static Result<Segment> create_private(Bytes capacity, MemoryProbe probe = base::memory_limits);
  // For a peer: maps a descriptor that came from the owner. kInvalid unless it is sealed and of this
  // capacity.
  static Result<Segment> open(UniqueFd fd, Bytes capacity);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  static std::uint64_t page_size();

  std::byte* data() const { return data_; }
  Bytes capacity() const { return capacity_; }
  int fd() const { return fd_.get(); }

  // Makes the pages of [offset, offset + size) real and zero, in steps, so that a limit met half way gives
  // back what was taken. kNoSpace says how much was needed and how much there was. Pages that are real
  // already stay.
  Status reserve(std::uint64_t offset, Bytes size);
  // Gives the pages that lie wholly inside the range back; their contents are gone. Best effort.
  void release(std::uint64_t offset, Bytes size);

  struct Part {
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
  };
  // Moves to fresh pages at the same address: the parts in use are copied, and whoever still has the old
  // memfd mapped (a peer that was stopped and comes back) writes to pages that nobody reads any more. The new
  // fd() must be given to the peers that stay. Takes as much memory again until it is done; after an error
  // nothing has changed.
  Status move_house(std::span<const Part> used);
  // For a peer whose owner has moved: maps the new descriptor, checked as by open(), at the same address.
  Status follow(UniqueFd fd);

 private:
  Segment(UniqueFd fd, std::byte* data, Bytes capacity, std::size_t neighbours, MemoryProbe probe);
  // Whether all that is still needed is there.
  Status check_memory(Bytes needed) const;

  UniqueFd fd_;  // nothing for private memory
  std::byte* data_ = nullptr;
  Bytes capacity_;
  std::size_t neighbours_ = 0;
  MemoryProbe probe_;
};

}  // namespace lockstep::transport::shm
