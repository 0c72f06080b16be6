// A clock that only a test moves.
//
// Thread safety: any thread may ask and advance. A wait on its deadlines looks again every millisecond.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "lockstep/base/clock.h"

namespace lockstep::testing {

class FakeClock final : public Clock {
 public:
  base::TimePoint now() const override { return base::TimePoint(Duration(now_.load())); }
  Duration patience(Duration remaining) const override {
    ++waits_;
    return std::min<Duration>(remaining, std::chrono::milliseconds(1));
  }
  void advance(Duration duration) { now_ += duration.count(); }
  // How many waits have begun on its deadlines, each look counted: it grows while someone waits.
  std::uint64_t waits() const { return waits_; }

 private:
  // Not zero, so that "long ago" can be said.
  std::atomic<Duration::rep> now_{Duration(std::chrono::hours(1000)).count()};
  mutable std::atomic<std::uint64_t> waits_ = 0;
};

}  // namespace lockstep::testing
