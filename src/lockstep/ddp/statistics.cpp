#include "lockstep/ddp/statistics.h"

#include <algorithm>

namespace lockstep::ddp {

void Statistics::take(const PassEvent& event) {
  switch (event.phase) {
    case PassPhase::kForward:
      forward_at_ = event.at;
      break;
    case PassPhase::kBackward:
      backward_at_ = last_ready_at_ = event.at;
      ready_order_.clear();
      buckets_reduced_ = 0;
      break;
    case PassPhase::kReady:
      last_ready_at_ = event.at;
      ready_order_.push_back(event.index);
      break;
    case PassPhase::kLaunched:
      if (buckets_reduced_++ == 0) first_launch_at_ = event.at;
      break;
    case PassPhase::kWaited:
    case PassPhase::kDone:
      break;
    case PassPhase::kFinished:
      ++sampled_;
      last_ = {.forward = backward_at_ - forward_at_,
               .backward = last_ready_at_ - backward_at_,
               .communication = event.at - first_launch_at_,
               .overlap = std::max(Duration{}, last_ready_at_ - first_launch_at_)};
      sum_ = {.forward = sum_.forward + last_.forward,
              .backward = sum_.backward + last_.backward,
              .communication = sum_.communication + last_.communication,
              .overlap = sum_.overlap + last_.overlap};
      break;
  }
}

Statistics::Times Statistics::average() const {
  const std::int64_t n = std::max<std::int64_t>(sampled_, 1);
  return {.forward = sum_.forward / n,
          .backward = sum_.backward / n,
          .communication = sum_.communication / n,
          .overlap = sum_.overlap / n};
}

}  // namespace lockstep::ddp
