#include "lockstep/base/beat_watch.h"

#include <algorithm>

namespace lockstep::base {

BeatWatch::BeatWatch(int nodes, Duration limit, Duration step, TimePoint now)
    : limit_(limit), step_(step), last_look_(now), nodes_(static_cast<std::size_t>(nodes)) {}

std::optional<int> BeatWatch::look(const std::vector<std::int64_t>& beats, TimePoint now) {
  const bool late = now - last_look_ > step_;
  const Duration passed = std::min(now - last_look_, step_);
  last_look_ = now;
  std::optional<int> silent;
  for (std::size_t i = 0; i < nodes_.size() && i < beats.size(); ++i) {
    Node& node = nodes_[i];
    if (beats[i] != node.beat) {
      node = {.beat = beats[i]};
    } else if (late && !node.given_again) {
      node = {.beat = beats[i], .given_again = true};
    } else {
      node.silence += passed;
    }
    if (node.silence > limit_ && !silent) silent = static_cast<int>(i);
  }
  return silent;
}

void BeatWatch::forgive() {
  for (Node& node : nodes_) node = {.beat = node.beat};
}

}  // namespace lockstep::base
