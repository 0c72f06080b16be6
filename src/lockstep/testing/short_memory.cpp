#include "lockstep/testing/short_memory.h"

#include <cstdint>
#include <cstdlib>
#include <new>

namespace lockstep::testing {
namespace {

enum class Shortage : std::uint8_t { kNone, kOne, kAll };

// Of this thread: how many allocations still succeed, and what comes then.
alignas(8) thread_local int allocations_left = 0;
thread_local Shortage shortage = Shortage::kNone;
thread_local bool has_failed = false;

bool may_allocate() {
  if (shortage == Shortage::kNone || allocations_left-- > 0) return true;
  allocations_left = 0;
  has_failed = true;
  if (shortage == Shortage::kOne) shortage = Shortage::kNone;
  return false;
}

struct Short {
  Short(Shortage kind, int fail_at) {
    allocations_left = fail_at;
    has_failed = false;
    shortage = kind;
  }
  ~Short() { shortage = Shortage::kNone; }
  Short(const Short&) = delete;
  Short& operator=(const Short&) = delete;
};

}  // namespace

bool without_one_allocation(int fail_at, const std::function<void()>& body) {
  {
    const Short memory(Shortage::kOne, fail_at);
    body();
  }
  return has_failed;
}

bool without_memory_after(int fail_at, const std::function<void()>& body) {
  {
    const Short memory(Shortage::kAll, fail_at);
    body();
  }
  return has_failed;
}

}  // namespace lockstep::testing

void* operator new(std::size_t size) {
  void* const memory = lockstep::testing::may_allocate() ? std::malloc(size == 0 ? 1 : size) : nullptr;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
