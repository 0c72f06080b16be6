// Waiting for a number in shared memory that one rank writes and its peers watch.
//
// A wait first spins, then yields, then sleeps in the kernel (futex). How long each lasts depends on whether
// every rank has a core to itself: a pure spin with more ranks than cores makes the spinner eat the time
// slice of the rank it waits for. The writer pays for a wake-up only when someone sleeps.
//
// std::atomic::wait is not used: it sleeps on a private futex, or on a proxy in its own process, and never
// hears a writer in another one.
//
// Thread safety: a Signal has one writer at a time and any number of waiters, in any process that maps it.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "lockstep/base/clock.h"
#include "lockstep/base/types.h"

namespace lockstep::transport::shm {

// Numbers count up and wrap around: `reached` is right while two that are compared lie within 2^31 of each
// other.
constexpr bool reached(std::uint32_t value, std::uint32_t target) {
  return static_cast<std::int32_t>(value - target) >= 0;
}

// A counter on two cache lines of its own (the prefetcher fetches pairs). Zero-filled memory is a valid
// Signal. The number stands in the lower half of its word, where the kernel compares it, and multiplied in
// the upper half, so that a reader can tell that something else has changed it.
struct alignas(128) Signal {
  std::atomic<std::uint64_t> word;
  std::atomic<std::uint32_t> sleepers;  // changed by something else, it costs a wake-up or a sleep of 50 ms

  struct Reading {
    std::uint32_t value;
    bool intact;  // as raise() has written it
  };
  Reading read(std::memory_order order = std::memory_order_acquire) const {
    const std::uint64_t now = word.load(order);
    const auto value = static_cast<std::uint32_t>(now);
    return {.value = value, .intact = now == word_of(value)};
  }
  static constexpr std::uint64_t word_of(std::uint32_t value) {
    return value | static_cast<std::uint64_t>(value * 0x9e3779b1U) << 32;
  }

  // Publishes `next`, and everything written before it, and wakes whoever sleeps.
  void raise(std::uint32_t next);
  // Wakes sleepers without a change, so that they look at their watch.
  void nudge();
};
static_assert(sizeof(Signal) == 128 && std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::endian::native == std::endian::little, "the kernel compares the lower half");

// What any number of ranks ring and the threads of one rank hear. Zero-filled memory is a valid Bell.
struct alignas(128) Bell {
  std::atomic<std::uint32_t> rings;
  std::atomic<std::uint32_t> sleepers;

  // For who has just stored, in the seq_cst order, what a sleeper's `look` would find. A system call only if
  // somebody sleeps.
  void ring();
  // Wakes sleepers whatever they look for.
  void wake();
  // Sleeps until it is rung, at most for `limit`. Not at all if `look`, which is asked when ringers can see
  // the sleeper, finds that there is something to do.
  void sleep(const std::function<bool()>& look, Duration limit);
};
static_assert(sizeof(Bell) == 128);

// How a wait behaves before it sleeps.
struct Patience {
  Duration spin = {};  // with the core kept
  int pauses = 0;      // then so many pause instructions,
  int yields = 0;      // and so many yields

  // Pure: `ranks` share `cores`.
  static Patience for_occupancy(WorldSize ranks, int cores);
};

enum class Waited : std::uint8_t { kReached, kTimeout, kStopped, kChanged };

// What a wait looks after before it sleeps, and at least every 50 ms while it does.
class Watch {
 public:
  virtual ~Watch() = default;
  // True if there is no sense in waiting any longer.
  virtual bool stop() = 0;
  // Something else has changed the signal at that place. The wait ends with kChanged.
  virtual void changed(std::size_t place) = 0;
};

// The part of a wait before it sleeps, for whoever looks in ways of its own.
class Idling {
 public:
  Idling(const Patience& patience, const Clock& clock) : patience_(patience), clock_(clock) {}
  // Pauses or yields, once; false when it is time to sleep.
  bool pause();
  // There was something to do.
  void reset();

 private:
  const Patience patience_;
  const Clock& clock_;
  base::TimePoint spin_until_{};  // known after the first pause
  int pauses_ = 0;
  int yields_ = 0;
};

// Until all signals have reached `target`, one is not as it was written, the watch says stop, or the
// deadline. nudge() makes a sleeper look at its watch at once, unless it was just about to sleep. On a
// timeout the caller looks for itself who is missing.
Waited wait_for_all(std::span<Signal* const> signals, std::uint32_t target, Watch& watch,
                    const Deadline& deadline, const Patience& patience);

}  // namespace lockstep::transport::shm
