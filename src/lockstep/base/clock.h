// Clock and Deadline: time is monotonic and injected.
//
// Functions take a Deadline, not a timeout, so that nested waits share one budget. Only CLOCK_MONOTONIC is
// ever asked: a wall clock that jumps, or a machine that was suspended, kills nobody.
//
// Thread safety: a Clock may be asked from any thread; Deadline is a value. A Clock outlives its Deadlines.
#pragma once

#include <chrono>

namespace lockstep::base {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

class Deadline;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
  // How long a real wait may last before now() is asked again. The steady clock says `remaining` itself; a
  // clock that a test moves by hand says a short while.
  virtual Duration patience(Duration remaining) const = 0;

  Deadline in(Duration duration) const;

  // CLOCK_MONOTONIC.
  static const Clock& steady();
};

// A point in time on one clock.
class Deadline {
 public:
  Deadline(const Clock& clock, TimePoint at) : clock_(&clock), at_(at) {}

  const Clock& clock() const { return *clock_; }
  TimePoint at() const { return at_; }
  bool expired() const { return clock_->now() >= at_; }
  // Never negative.
  Duration remaining() const;
  // For poll(2) and epoll_wait(2): rounded up, so that an unexpired deadline is never 0; capped at an hour.
  int poll_millis() const;
  // The earlier of this and `duration` from now.
  Deadline at_most(Duration duration) const;

 private:
  const Clock* clock_;
  TimePoint at_;
};

}  // namespace lockstep::base

namespace lockstep {
using base::Clock;
using base::Deadline;
using base::Duration;
}  // namespace lockstep
