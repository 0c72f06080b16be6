#include "lockstep/transport/shm/heap.h"

#include <algorithm>
#include <new>
#include <vector>

#include "lockstep/base/text.h"

namespace lockstep::transport::shm {
namespace {

// Below this, pages are kept for the next range: a fresh page costs more than the memory is worth.
constexpr Bytes kGiveBack = Bytes::mib(1);
constexpr std::uint64_t kNear = 4096;

// The pages that a range lies in, and those that lie in it.
RangeSet::Range pages_around(std::uint64_t offset, Bytes size, Bytes capacity) {
  const std::uint64_t page = Segment::page_size();
  return {offset / page * page, std::min(capacity.value, (offset + size.value + page - 1) / page * page)};
}
RangeSet::Range pages_inside(std::uint64_t offset, Bytes size) {
  const std::uint64_t page = Segment::page_size();
  return {(offset + page - 1) / page * page, (offset + size.value) / page * page};
}

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
  if (Status status = make_real(*offset, size); !status.ok()) {
    (void)ranges_.free(*offset);
    return status;
  }
  return Range{*offset, segment_.data() + *offset};
}

Status Heap::make_real(std::uint64_t offset, Bytes size) {
  const RangeSet::Range pages = pages_around(offset, size, segment_.capacity());
  std::vector<RangeSet::Range> made;
  Status status;
  while (const auto gap = real_.first_gap(pages, segment_.capacity().value)) {
    // No page of it is real yet: if it cannot be had, nobody's pages go with it.
    RangeSet::Range wanted{gap->first, std::min(gap->end, std::max(pages.end, gap->first + kAhead.value))};
    status = segment_.reserve(wanted.first, Bytes{wanted.end - wanted.first});
    if (status.failure() == Failure::kNoSpace && wanted.end > pages.end) {
      wanted.end = pages.end;
      status = segment_.reserve(wanted.first, Bytes{wanted.end - wanted.first});
    }
    if (!status.ok()) break;
    real_.add(wanted);
    made.push_back(wanted);
  }
  if (status.ok()) return status;
  for (const RangeSet::Range& range : made) give_back(range);
  return status;
}

void Heap::give_back(RangeSet::Range pages) {
  if (pages.first >= pages.end) return;
  try {
    real_.remove(pages);
  } catch (const std::bad_alloc&) {
    return;  // they stay real, for whoever is given them next
  }
  segment_.release(pages.first, Bytes{pages.end - pages.first});
}

void Heap::free(std::uint64_t offset) {
  MutexLock lock(mutex_);
  const Bytes size = ranges_.free(offset);
  LOCKSTEP_CHECK(size.value > 0, "a range of the shared heap was freed twice, or never handed out");
  if (size >= kGiveBack) give_back(pages_inside(offset, size));
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
  LOCKSTEP_TRY(segment_.move_house(used));
  real_ = RangeSet();
  for (const Segment::Part& part : used)
    real_.add(pages_around(part.offset, Bytes{part.size}, segment_.capacity()));
  return {};
}

Bytes Heap::used() const {
  MutexLock lock(mutex_);
  return ranges_.used();
}

}  // namespace lockstep::transport::shm
