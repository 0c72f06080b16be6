#include "lockstep/ddp/statistics.h"

#include <algorithm>

namespace lockstep::ddp {

void Statistics::take(const PassEvent& event) {
  const MutexLock lock(mutex_);
  Moments& at = sample_.moments;
  switch (event.phase) {
    case PassPhase::kForward:
      at.forward = event.at;
      break;
    case PassPhase::kBackward:
      at.backward = at.last_ready = event.at;
      sample_.ready_order.clear();
      sample_.buckets_reduced = 0;
      break;
    case PassPhase::kReady:
      at.last_ready = event.at;
      sample_.ready_order.push_back(event.index);
      break;
    case PassPhase::kLaunched:
      if (sample_.buckets_reduced++ == 0) at.first_launch = event.at;
      break;
    case PassPhase::kWaited:
    case PassPhase::kDone:
      break;
    case PassPhase::kFinished:
      ++sampled_;
      at.finished = event.at;
      if (sample_.buckets_reduced == 0) at.first_launch = event.at;
      sample_.last = {.forward = at.backward - at.forward,
                      .backward = at.last_ready - at.backward,
                      .communication = at.finished - at.first_launch,
                      .overlap = std::max(Duration{}, at.last_ready - at.first_launch)};
      sum_ = {.forward = sum_.forward + sample_.last.forward,
              .backward = sum_.backward + sample_.last.backward,
              .communication = sum_.communication + sample_.last.communication,
              .overlap = sum_.overlap + sample_.last.overlap};
      break;
  }
}

Statistics::Sample Statistics::sample() const {
  const MutexLock lock(mutex_);
  Sample sample = sample_;
  const std::int64_t n = std::max<std::int64_t>(sampled_, 1);
  sample.average = {.forward = sum_.forward / n,
                    .backward = sum_.backward / n,
                    .communication = sum_.communication / n,
                    .overlap = sum_.overlap / n};
  return sample;
}

}  // namespace lockstep::ddp
