#include "lockstep/transport/shm/heap.h"

#include <vector>

#include "lockstep/base/text.h"

namespace lockstep::transport::shm {
namespace {

// Below this, pages are kept for the next range: a fresh page costs more than the memory is worth.
constexpr Bytes kGiveBack = Bytes::mib(1);
constexpr std::uint64_t kNear = 4096;

}  // namespace

Heap::Heap(Segment segment) : segment_(std::move(segment)), ranges_(segment_.capacity()) {}

Result<Heap::Range> Heap::allocate(Bytes size, std::uint64_t alignment) {
  MutexLock lock(mutex_);
  const auto offset = ranges_.allocate(size, alignment);
  if (!offset) {
    return Status(Code::kInternal,
                  cat("the shared heap of ", segment_.capacity(), " has no room for ", size, " (",
                      ranges_.used(), " are in use, the largest gap is ", ranges_.largest_free(), ")"),
                  {.failure = Failure::kNoSpace});
  }
  if (Status status = segment_.reserve(*offset, size); !status.ok()) {
    (void)ranges_.free(*offset);
    return status;
  }
  return Range{*offset, segment_.data() + *offset};
}

void Heap::free(std::uint64_t offset) {
  MutexLock lock(mutex_);
  const Bytes size = ranges_.free(offset);
  LOCKSTEP_CHECK(size.value > 0, "a range of the shared heap was freed twice, or never handed out");
  if (size >= kGiveBack) segment_.release(offset, size);
}

std::optional<std::uint64_t> Heap::offset_of(const void* pointer, Bytes size) const {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const auto start = reinterpret_cast<std::uintptr_t>(segment_.data());
  if (address < start || address - start > segment_.capacity().value) return std::nullopt;
  const std::uint64_t offset = address - start;
  if (size.value > segment_.capacity().value - offset) return std::nullopt;
  return offset;
}

Status Heap::move_house() {
  MutexLock lock(mutex_);
  std::vector<Segment::Part> used;
  for (const auto& [offset, size] : ranges_.taken()) {
    // Neighbours go together: each part is a question to the system about free memory.
    if (!used.empty() && offset - used.back().offset - used.back().size < kNear) {
      used.back().size = offset + size - used.back().offset;
    } else {
      used.push_back({offset, size});
    }
  }
  return segment_.move_house(used);
}

Bytes Heap::used() const {
  MutexLock lock(mutex_);
  return ranges_.used();
}

}  // namespace lockstep::transport::shm
