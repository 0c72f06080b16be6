// What happens in backward passes, as events: from these, logs, statistics, traces and pictures are made.
//
// Order in one pass: forward and backward (when they begin), ready (for each parameter), launched (for each
// bucket, in plan order, as soon as its gradients are all ready), waited and done (for each bucket, in that
// order, when backward is over), finished. A bucket that is left out is not told of. A second backward after
// one forward has no forward of its own. Thread safety: an observer is called by autograd's threads with no
// lock held: one at a time where all gradients are of one device, else by several at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "lockstep/base/clock.h"
#include "lockstep/base/types.h"

namespace lockstep::ddp {

enum class PassPhase : std::uint8_t { kForward, kBackward, kReady, kLaunched, kWaited, kDone, kFinished };

struct PassEvent {
  PassPhase phase = PassPhase::kReady;
  base::TimePoint at = {};
  std::size_t index = 0;  // kReady: the parameter; kLaunched, kWaited, kDone: the bucket
  Bytes bytes = {};       // of the bucket
  Duration running = {};  // kDone: how long the bucket's operation ran, as far as it is known
  Duration waiting = {};  // kDone: how long this rank waited for it after backward
};

using PassObserver = std::function<void(const PassEvent&)>;

}  // namespace lockstep::ddp

namespace lockstep {
using ddp::PassEvent;
using ddp::PassObserver;
using ddp::PassPhase;
}  // namespace lockstep
