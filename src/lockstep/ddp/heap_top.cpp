#include "lockstep/ddp/heap_top.h"

#include <unistd.h>

#include <functional>
#include <utility>

namespace lockstep::ddp {
namespace {

// What is larger, the C library maps and unmaps by itself.
constexpr std::size_t kMost = std::size_t{32} << 20;

}  // namespace

void HeapTop::saw(const at::Tensor& gradient) {
  if (!gradient.is_cpu()) return;
  const std::less<const void*> below;
  const c10::Storage& storage = gradient.storage();
  if (storage.nbytes() >= kMost || !below(storage.data(), ::sbrk(0))) return;
  std::optional<c10::Storage> old;  // freed with no lock held
  const MutexLock lock(mutex_);
  if (highest_ && !below(highest_->data(), storage.data())) return;
  old = std::exchange(highest_, storage);
}

std::size_t HeapTop::kept() const {
  const MutexLock lock(mutex_);
  return highest_ ? highest_->nbytes() : 0;
}

}  // namespace lockstep::ddp
