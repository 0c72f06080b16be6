// Address space that is kept for the moment when there is no memory left: whoever meets that lets go of it,
// and can say so. No page of it is ever used.
//
// Thread safety: any thread.
#pragma once

#include <atomic>

namespace lockstep::backend {

class MemoryReserve {
 public:
  MemoryReserve() { renew(); }
  ~MemoryReserve() { let_go(); }
  MemoryReserve(const MemoryReserve&) = delete;
  MemoryReserve& operator=(const MemoryReserve&) = delete;

  // Takes it again, if it was let go of and can be had.
  void renew();
  void let_go();

 private:
  std::atomic<void*> memory_ = nullptr;
};

}  // namespace lockstep::backend
