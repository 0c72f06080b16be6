// An Alarm is one point in time, set on the strand and rung there; the loop keeps the time.
//
// Thread safety: none; lives on the strand.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/transport/loop.h"
#include "lockstep/transport/messages/strand.h"

namespace lockstep::transport::messages {

class Alarm {
 public:
  // The strand is shared with what is posted to the loop.
  Alarm(std::shared_ptr<Strand> strand, Loop& loop);
  ~Alarm() { disarm_on_strand(); }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  // Replaces what was set. `ring` runs once, not before `at`; TimePoint::max() is never.
  void arm_on_strand(base::TimePoint at, std::function<void()> ring);
  void disarm_on_strand();
  bool armed() const { return state_->ring != nullptr; }
  base::TimePoint at() const { return state_->at; }

 private:
  // Shared with what is posted to the loop.
  struct State {
    const std::shared_ptr<Strand> strand;
    Timer timer;  // the loop's
    base::TimePoint at{};
    std::function<void()> ring = {};
    std::uint64_t round = 0;  // tells a setting from the one that replaced it
  };
  static void rung_on_loop(const std::shared_ptr<State>& state, std::uint64_t round);

  Loop& loop_;
  const std::shared_ptr<State> state_;
};

}  // namespace lockstep::transport::messages
