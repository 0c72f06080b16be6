#include "lockstep/ddp/pass_watch.h"

#include <utility>

namespace lockstep::ddp {

void PassWatch::observe(PassObserver observer) { of_user_ = std::move(observer); }

void PassWatch::begin_pass() {
  statistics_.begin_iteration();
  of_pass_ = of_user_;
  if (statistics_.samples_this_one()) {
    of_pass_ = [this](const PassEvent& event) {
      statistics_.take(event);
      if (of_user_) of_user_(event);
    };
  }
  if (of_pass_) of_pass_({.phase = PassPhase::kForward, .at = Clock::steady().now()});
}

}  // namespace lockstep::ddp
