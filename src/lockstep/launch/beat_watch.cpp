#include "lockstep/launch/beat_watch.h"

namespace lockstep::launch {

BeatWatch::BeatWatch(int nodes, Duration limit, Duration lateness, base::TimePoint now)
    : limit_(limit), lateness_(lateness), last_look_(now), nodes_(static_cast<std::size_t>(nodes)) {
  for (Node& node : nodes_) node.heard = now;
}

std::optional<int> BeatWatch::look(const std::vector<std::int64_t>& beats, base::TimePoint now) {
  const bool late = now - last_look_ > lateness_;
  last_look_ = now;
  std::optional<int> silent;
  for (std::size_t i = 0; i < nodes_.size() && i < beats.size(); ++i) {
    Node& node = nodes_[i];
    if (beats[i] != node.beat || late) node.heard = now;
    node.beat = beats[i];
    if (now - node.heard > limit_ && !silent) silent = static_cast<int>(i);
  }
  return silent;
}

}  // namespace lockstep::launch
