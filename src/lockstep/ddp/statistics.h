// Statistics are how long forward, backward and communication took, in the passes that were sampled: the
// first ten, and then one of every hundred (or as set_sample_rate() says), as torch does it.
//
// Thread safety: one thread at a time, as events come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/base/clock.h"
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

  const Times& last() const { return last_; }
  Times average() const;
  // Of the last pass that was sampled.
  const std::vector<std::size_t>& ready_order() const { return ready_order_; }
  std::size_t buckets_reduced() const { return buckets_reduced_; }

 private:
  static constexpr std::int64_t kFirst = 10;

  std::int64_t iterations_ = 0;
  int rate_ = 100;
  std::int64_t sampled_ = 0;
  Times last_;
  Times sum_;
  std::vector<std::size_t> ready_order_;
  std::size_t buckets_reduced_ = 0;
  base::TimePoint forward_at_;
  base::TimePoint backward_at_;
  base::TimePoint last_ready_at_;
  base::TimePoint first_launch_at_;
};

}  // namespace lockstep::ddp
