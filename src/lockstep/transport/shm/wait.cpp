#include "lockstep/transport/shm/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>
#include <optional>

#include "lockstep/base/pause_cpu.h"

namespace lockstep::transport::shm {
namespace {

using namespace std::chrono_literals;

// Who has just begun to wait may be the first that can see that there is no sense in it: the first so many
// sleeps are short.
constexpr int kEarlySleeps = 20;
constexpr Duration kEarlySlice = 10ms;
constexpr Duration kSleepSlice = 50ms;
constexpr int kPausesPerLook = 32;  // at the clock, which costs as much as a few pauses

// The kernel compares and sleeps in one step. Shared, not private: waiter and writer are different processes.
void futex_sleep(const void* word, std::uint32_t seen, Duration timeout) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timespec limit{.tv_sec = seconds.count(), .tv_nsec = (timeout - seconds).count()};
  ::syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void futex_wake_all(const void* word) {
  ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Sleeps until the signal moves on from where it is below `target`, or for one slice.
void sleep_below(Signal& signal, std::uint32_t target, const Deadline& deadline, Duration slice) {
  // Announced before the last look: a writer that sees no sleeper has written before that look.
  signal.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t seen = signal.read(std::memory_order_seq_cst).value;
  if (!reached(seen, target)) {
    const Duration left = deadline.clock().patience(deadline.remaining());
    futex_sleep(&signal.word, seen, std::min(left, slice));
  }
  signal.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace

void Signal::raise(std::uint32_t next) {
  word.store(word_of(next), std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(&word);
}

void Signal::nudge() { futex_wake_all(&word); }

void Bell::ring() {
  if (sleepers.load(std::memory_order_seq_cst) != 0) wake();
}

void Bell::wake() {
  rings.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(&rings);
}

void Bell::sleep(const std::function<bool()>& look, Duration limit) {
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t heard = rings.load(std::memory_order_seq_cst);
  if (!look()) futex_sleep(&rings, heard, limit);
  sleepers.fetch_sub(1, std::memory_order_relaxed);
}

void Idling::reset() {
  spin_until_ = {};
  pauses_ = 0;
  yields_ = 0;
}

bool Idling::pause() {
  const bool spins = patience_.spin > Duration::zero();
  if (spins && spin_until_ == base::TimePoint{}) spin_until_ = clock_.now() + patience_.spin;
  const bool look_at_clock = pauses_ % kPausesPerLook == kPausesPerLook - 1;
  if (spins && yields_ == 0 && (!look_at_clock || clock_.now() < spin_until_)) {
    ++pauses_;
    base::pause_cpu();
    return true;
  }
  if (!spins && pauses_ < patience_.pauses) {
    ++pauses_;
    base::pause_cpu();
    return true;
  }
  if (yields_ >= patience_.yields) return false;
  ++yields_;
  ::sched_yield();
  return true;
}

Patience Patience::for_occupancy(WorldSize ranks, int cores) {
  if (ranks.value <= cores) return {.spin = 20us, .pauses = 0, .yields = 100};
  return {.spin = {}, .pauses = 50, .yields = 100};
}

Waited wait_for_all(std::span<Signal* const> signals, std::uint32_t target, Watch& watch,
                    const Deadline& deadline, const Patience& patience) {
  std::size_t next = 0;  // all before it have reached the target
  const auto look = [&]() -> std::optional<Waited> {
    for (; next < signals.size(); ++next) {
      const Signal::Reading reading = signals[next]->read();
      if (!reading.intact) {
        watch.changed(next);
        return Waited::kChanged;
      }
      if (!reached(reading.value, target)) return std::nullopt;
    }
    return Waited::kReached;
  };
  if (const auto end = look()) return *end;

  if (patience.spin > Duration::zero()) {
    const base::TimePoint until = deadline.clock().now() + patience.spin;
    do {
      for (int i = 0; i < kPausesPerLook; ++i) {
        base::pause_cpu();
        if (const auto end = look()) return *end;
      }
    } while (deadline.clock().now() < until);
  }
  for (int i = 0; i < patience.pauses; ++i) {
    base::pause_cpu();
    if (const auto end = look()) return *end;
  }
  for (int i = 0; i < patience.yields; ++i) {
    ::sched_yield();
    if (const auto end = look()) return *end;
  }
  for (int sleeps = 0;; ++sleeps) {
    if (const auto end = look()) return *end;
    if (watch.stop()) return Waited::kStopped;
    if (deadline.expired()) return Waited::kTimeout;
    sleep_below(*signals[next], target, deadline, sleeps < kEarlySleeps ? kEarlySlice : kSleepSlice);
  }
}

}  // namespace lockstep::transport::shm
