// Statistics are how long forward, backward and communication took, in the passes that were sampled: the
// first ten, and then one of every hundred (or as set_sample_rate() says), as torch does it.
//
// Thread safety: take() from any thread; all else by the thread that runs forward, when no pass runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/mutex.h"
#include "lockstep/ddp/observer.h"

namespace lockstep::ddp {

class Statistics {
 public:
  struct Times {
    Duration forward = {};   // from the beginning of forward to that of backward
    Duration backward = {};  // from there to the last gradient
    Duration communication = {};
    Duration overlap = {};  // of communication with backward
  };

  // At least 1.
  void set_sample_rate(int rate) { rate_ = rate; }
  // A forward whose pass is to be synchronised begins.
  void begin_iteration() { ++iterations_; }
  std::int64_t iterations() const { return iterations_; }
  bool samples_this_one() const { return iterations_ <= kFirst || iterations_ % rate_ == 0; }

  // Of a pass that is sampled.
  void take(const PassEvent& event);

  // When the last pass that was sampled had its turns, on the steady clock.
  struct Moments {
    base::TimePoint forward = {};
    base::TimePoint backward = {};
    base::TimePoint last_ready = {};
    base::TimePoint first_launch = {};  // `finished`, if every bucket was left out
    base::TimePoint finished = {};
  };
  struct Sample {
    Times last = {};
    Times average = {};
    Moments moments = {};
    std::vector<std::size_t> ready_order = {};
    std::size_t buckets_reduced = 0;
  };
  Sample sample() const;

 private:
  static constexpr std::int64_t kFirst = 10;

  std::int64_t iterations_ = 0;
  int rate_ = 100;
  mutable Mutex mutex_;
  std::int64_t sampled_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  Times sum_ LOCKSTEP_GUARDED_BY(mutex_);
  Sample sample_ LOCKSTEP_GUARDED_BY(mutex_);  // but for the average
};

}  // namespace lockstep::ddp
