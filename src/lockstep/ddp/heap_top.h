// HeapTop keeps the C library from giving memory of gradients back to the system in every step.
//
// A gradient that autograd makes anew is copied to its bucket and freed at once. What is freed at the top of
// the heap goes back to the system, and the next gradient has to be given fresh pages, each at the price of a
// page fault: thousands in one step. The top stays where it is as long as what lies there is in use, so the
// memory of the highest gradient so far is kept. All below is free for whoever asks.
//
// Gradients that are not in the heap of the main thread are not kept: those of 32 MiB and more, those of
// another allocator, those of backward passes on other threads.
// Thread safety: any thread. Internal.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "lockstep/base/mutex.h"

namespace lockstep::ddp {

class HeapTop {
 public:
  void saw(const at::Tensor& gradient);
  // In bytes, for tests.
  std::size_t kept() const;

 private:
  mutable Mutex mutex_;
  std::optional<c10::Storage> highest_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::ddp
