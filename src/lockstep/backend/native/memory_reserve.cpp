#include "lockstep/backend/native/memory_reserve.h"

#include <sys/mman.h>

#include <cstddef>

namespace lockstep::backend {
namespace {

// What malloc asks the kernel for at the least when its heap cannot grow, and more.
constexpr std::size_t kSize = 2U << 20;

}  // namespace

void MemoryReserve::renew() {
  if (memory_ != nullptr) return;
  void* const memory = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  void* none = nullptr;
  if (!memory_.compare_exchange_strong(none, memory)) ::munmap(memory, kSize);
}

void MemoryReserve::let_go() {
  if (void* const memory = memory_.exchange(nullptr); memory != nullptr) ::munmap(memory, kSize);
}

}  // namespace lockstep::backend
