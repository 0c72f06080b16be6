#include "lockstep/backend/native/window_memory.h"

#include <cstring>
#include <new>

#include "lockstep/base/text.h"

namespace lockstep::backend {

Result<std::shared_ptr<OwnWindowBlock>> OwnWindowBlock::make(std::shared_ptr<transport::shm::Domain> domain,
                                                             Bytes size, int members) {
  const std::size_t total = WindowBlock::header_size(members) + size.value;
  if (total < size.value) return Status::invalid(cat("a window of ", size, " is too large"));
  std::uint64_t offset = 0;
  std::byte* start = nullptr;
  if (domain) {
    LOCKSTEP_ASSIGN(const transport::shm::Heap::Range range,
                    domain->heap().allocate(Bytes{total}, alignof(WindowControl)));
    offset = range.offset;
    start = range.data;
  } else {
    start = static_cast<std::byte*>(
        ::operator new(total, std::align_val_t(alignof(WindowControl)), std::nothrow));
    if (start == nullptr)
      return Status::internal(cat("there is no memory for ", size), {.failure = Failure::kNoMemory});
  }
  std::memset(start, 0, total);
  return std::shared_ptr<OwnWindowBlock>(new OwnWindowBlock(std::move(domain), offset, start, members));
}

OwnWindowBlock::~OwnWindowBlock() {
  if (!domain_) {
    ::operator delete(start_, std::align_val_t(alignof(WindowControl)));
    return;
  }
  if (base::fork_generation() != fork_generation_ || !users_) return;
  domain_->retire(offset_, block_.control->left, *users_);
}

void WindowReach::add_peer(const WindowBlock& block) {
  blocks_.emplace_back(block);
  peers_.push_back(block);
}

WindowReach::~WindowReach() {
  if (base::fork_generation() != fork_generation_) return;
  for (const WindowBlock& peer : peers_) peer.control->left.fetch_add(1, std::memory_order_release);
}

}  // namespace lockstep::backend
