// Loaded before everything else (LD_PRELOAD): a wall clock that jumps an hour forth and back at each look,
// or, with WALL_CLOCK=drifts, one that goes ten times as fast as it should. Other clocks stay as they are.
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#include <atomic>
#include <cstdint>

namespace {

std::atomic<unsigned> looks{0};
std::atomic<std::int64_t> begin{0};  // the first look of a clock that drifts, in microseconds

bool drifts() {
  static const char* const chosen = getenv("WALL_CLOCK");
  return chosen != nullptr && strcmp(chosen, "drifts") == 0;
}

// What the wall says at `now`, in microseconds.
std::int64_t wall(std::int64_t now) {
  if (!drifts()) return now + (looks.fetch_add(1) % 2 == 0 ? 1 : -1) * std::int64_t{3'600'000'000};
  std::int64_t first = 0;
  if (begin.compare_exchange_strong(first, now)) first = now;
  return first + 10 * (now - first);
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* out) {
  using Real = int (*)(clockid_t, timespec*);
  static const auto real = reinterpret_cast<Real>(dlsym(RTLD_NEXT, "clock_gettime"));
  const int status = real(clock, out);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
    const std::int64_t said = wall(std::int64_t{out->tv_sec} * 1'000'000 + out->tv_nsec / 1000);
    out->tv_sec = said / 1'000'000;
    out->tv_nsec = said % 1'000'000 * 1000;
  }
  return status;
}

extern "C" int gettimeofday(timeval* out, void* zone) {
  using Real = int (*)(timeval*, void*);
  static const auto real = reinterpret_cast<Real>(dlsym(RTLD_NEXT, "gettimeofday"));
  const int status = real(out, zone);
  const std::int64_t said = wall(std::int64_t{out->tv_sec} * 1'000'000 + out->tv_usec);
  out->tv_sec = said / 1'000'000;
  out->tv_usec = said % 1'000'000;
  return status;
}
