#include "lockstep/base/clock.h"

#include <algorithm>

namespace lockstep::base {
namespace {

class SteadyClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
  Duration patience(Duration remaining) const override { return remaining; }
};

}  // namespace

const Clock& Clock::steady() {
  static const SteadyClock clock;
  return clock;
}

Deadline Clock::in(Duration duration) const {
  const TimePoint start = now();
  // A duration that would overflow means "as late as can be said".
  if (duration > TimePoint::max() - start) return {*this, TimePoint::max()};
  return {*this, start + duration};
}

Duration Deadline::remaining() const { return std::max(Duration::zero(), at_ - clock_->now()); }

int Deadline::poll_millis() const {
  constexpr auto kHour = std::chrono::milliseconds(std::chrono::hours(1));
  const Duration wait = clock_->patience(remaining());
  return static_cast<int>(std::min(std::chrono::ceil<std::chrono::milliseconds>(wait), kHour).count());
}

Deadline Deadline::at_most(Duration duration) const {
  const Deadline other = clock_->in(duration);
  return other.at_ < at_ ? other : *this;
}

}  // namespace lockstep::base
