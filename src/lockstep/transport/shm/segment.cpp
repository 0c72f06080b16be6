#include "lockstep/transport/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "lockstep/base/text.h"

namespace lockstep::transport::shm {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Result<std::byte*> map_at(void* address, int fd, Bytes capacity, int flags) {
  void* mapped =
      ::mmap(address, capacity.value, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | flags, fd, 0);
  if (mapped == MAP_FAILED)
    return Status::from_errno(cat("cannot map ", capacity, " of shared memory"), errno);
  return static_cast<std::byte*>(mapped);
}

Result<UniqueFd> sealed_memfd(std::string_view label, Bytes capacity) {
  UniqueFd fd(::memfd_create(std::string(label).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) {
    return Status(Code::kUnsupported,
                  cat("memfd_create is not possible here (", ::strerrordesc_np(errno),
                      "): shared memory needs Linux 3.17 and a container that allows it"));
  }
  if (::ftruncate(fd.get(), static_cast<off_t>(capacity.value)) != 0) {
    return Status::from_errno(cat("cannot size a shared memory segment to ", capacity), errno);
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return Status::from_errno("cannot seal a shared memory segment", errno);
  }
  return fd;
}

// What came from a peer can be mapped: nobody can make an access to it fault.
Status check_descriptor(int fd, Bytes capacity) {
  struct stat info {};
  if (::fstat(fd, &info) != 0)
    return Status::from_errno("cannot look at a peer's shared memory segment", errno);
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return Status::invalid("a peer sent a descriptor that is not a sealed shared memory segment");
  }
  if (static_cast<std::uint64_t>(info.st_size) != capacity.value) {
    return Status::invalid(cat("a peer's shared memory segment has ",
                               Bytes{static_cast<std::uint64_t>(info.st_size)}, ", not the ", capacity,
                               " it announced"));
  }
  return {};
}

}  // namespace

std::uint64_t Segment::page_size() {
  static const auto size = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

Segment::Segment(UniqueFd fd, std::byte* data, Bytes capacity, std::size_t neighbours, MemoryProbe probe)
    : fd_(std::move(fd)),
      data_(data),
      capacity_(capacity),
      neighbours_(neighbours),
      probe_(std::move(probe)) {}

Segment::Segment(Segment&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      capacity_(other.capacity_),
      neighbours_(other.neighbours_),
      probe_(std::move(other.probe_)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(capacity_, other.capacity_);
  std::swap(neighbours_, other.neighbours_);
  std::swap(probe_, other.probe_);
  return *this;
}

Segment::~Segment() {
  if (data_ != nullptr) ::munmap(data_, capacity_.value);
}

Result<Segment> Segment::create(std::string_view label, Bytes capacity, std::size_t neighbours,
                                MemoryProbe probe) {
  capacity.value = (capacity.value + page_size() - 1) / page_size() * page_size();
  LOCKSTEP_ASSIGN(UniqueFd fd, sealed_memfd(label, capacity));
  LOCKSTEP_ASSIGN(std::byte * data, map_at(nullptr, fd.get(), capacity, 0));
  return Segment(std::move(fd), data, capacity, neighbours, std::move(probe));
}

Result<Segment> Segment::create_private(Bytes capacity, MemoryProbe probe) {
  LOCKSTEP_ASSIGN(std::byte * data, map_at(nullptr, -1, capacity, MAP_ANONYMOUS));
  return Segment(UniqueFd(), data, capacity, 0, std::move(probe));
}

Result<Segment> Segment::open(UniqueFd fd, Bytes capacity) {
  LOCKSTEP_TRY(check_descriptor(fd.get(), capacity));
  LOCKSTEP_ASSIGN(std::byte * data, map_at(nullptr, fd.get(), capacity, 0));
  return Segment(std::move(fd), data, capacity, 0, nullptr);
}

// All of it, not the next step alone: memory that is filled to the brim before the answer is no would wake
// the OOM killer.
Status Segment::check_memory(Bytes needed) const {
  if (!probe_) return {};
  LOCKSTEP_ASSIGN(const base::MemoryLimits limits, probe_());
  const Bytes others{kMargin.value + neighbours_ * kStep.value};
  if (limits.available.value >= needed.value + others.value) return {};
  return Status(
      Code::kInternal,
      cat("shared memory needs ", needed, " more, but only ", limits.available, " of memory is free (",
          others, " is left to others): use fewer ranks or smaller buffers, or raise the memory limit"),
      {.failure = Failure::kNoSpace});
}

Status Segment::reserve(std::uint64_t offset, Bytes size) {
  if (offset > capacity_.value || size.value > capacity_.value - offset) {
    return Status::invalid(
        cat("a reservation of ", size, " at ", offset, " does not fit into a segment of ", capacity_),
        {.failure = Failure::kLimitExceeded});
  }
  const std::uint64_t end = offset + size.value;
  for (std::uint64_t at = offset; at < end;) {
    const std::uint64_t step = std::min(kStep.value, end - at);
    Status status = check_memory(Bytes{end - at});
    if (status.ok() && fd_) {
      int error = 0;
      do {
        error = ::fallocate(fd_.get(), 0, static_cast<off_t>(at), static_cast<off_t>(step)) == 0 ? 0 : errno;
      } while (error == EINTR);
      if (error != 0) status = Status::from_errno(cat("cannot reserve ", size, " of shared memory"), error);
    }
    if (!status.ok()) {
      release(offset, Bytes{at - offset});
      return status;
    }
    at += step;
  }
  // Best effort: a page that is touched for the first time in the middle of an operation costs it a fault.
  const std::uint64_t first = offset / page_size() * page_size();
  if (fd_ && end > first) (void)::madvise(data_ + first, end - first, MADV_POPULATE_WRITE);
  return {};
}

void Segment::release(std::uint64_t offset, Bytes size) {
  const std::uint64_t first = (offset + page_size() - 1) / page_size() * page_size();
  const std::uint64_t last = (offset + size.value) / page_size() * page_size();
  if (first >= last) return;
  if (!fd_) {
    (void)::madvise(data_ + first, last - first, MADV_REMOVE);
    return;
  }
  (void)::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first),
                    static_cast<off_t>(last - first));
}

Status Segment::move_house(std::span<const Part> used) {
  if (!fd_) return {};  // nobody else has it
  LOCKSTEP_ASSIGN(UniqueFd fd, sealed_memfd("lockstep-heap", capacity_));
  LOCKSTEP_ASSIGN(std::byte * fresh, map_at(nullptr, fd.get(), capacity_, 0));
  Segment next(std::move(fd), fresh, capacity_, neighbours_, probe_);
  for (const Part& part : used) {
    LOCKSTEP_TRY(next.reserve(part.offset, Bytes{part.size}));
    std::memcpy(next.data_ + part.offset, data_ + part.offset, part.size);
  }
  // Over the old mapping, in one step: no address of ours is ever without memory.
  LOCKSTEP_TRY(map_at(data_, next.fd_.get(), capacity_, MAP_FIXED).status());
  std::swap(fd_, next.fd_);
  return {};
}

Status Segment::follow(UniqueFd fd) {
  LOCKSTEP_TRY(check_descriptor(fd.get(), capacity_));
  LOCKSTEP_TRY(map_at(data_, fd.get(), capacity_, MAP_FIXED).status());
  fd_ = std::move(fd);
  return {};
}

}  // namespace lockstep::transport::shm
