// Tells the processor that this thread spins: it leaves the core to its sibling, and saves power.
#pragma once

namespace lockstep::base {

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace lockstep::base
