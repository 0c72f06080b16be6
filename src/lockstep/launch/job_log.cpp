#include "lockstep/launch/job_log.h"

#include <utility>

namespace lockstep::launch {

// Reset is forgetting: only the nodes' plans outlive an attempt.
void JobLog::enter(std::uint64_t epoch) {
  epoch_ = epoch;
  ready_.clear();
  done_.clear();
  round_ = false;
  over_ = false;
}

std::optional<AgentEvent> JobLog::apply(const AgentMessage& message) {
  using Kind = AgentMessage::Kind;
  if (message.node < 0 || static_cast<std::size_t>(message.node) >= plans_.size()) return std::nullopt;
  if (message.kind == Kind::kStop) {
    return AgentEvent{.kind = AgentEvent::Kind::kStop, .signal = message.signal, .host = message.host};
  }
  if (message.kind == Kind::kLost) {
    return AgentEvent{.kind = AgentEvent::Kind::kLost, .error = Status::disconnected(message.text)};
  }
  // The first one that is ready for the next attempt opens it.
  if (message.kind == Kind::kReady && message.epoch == epoch_ + 1) enter(message.epoch);
  if (message.epoch != epoch_) return std::nullopt;

  if (message.kind == Kind::kReady) {
    plans_[static_cast<std::size_t>(message.node)] = message.plan;
    ready_.insert(message.node);
    return std::nullopt;
  }
  if (message.kind == Kind::kRound) {
    if (std::exchange(round_, true)) return std::nullopt;
    AgentEvent event{.kind = AgentEvent::Kind::kRound, .epoch = epoch_};
    event.round.job = message.job;
    event.round.nodes = message.nodes;
    event.round.node = node_;
    return event;
  }
  if (over_) return std::nullopt;
  if (message.kind == Kind::kFailed) {
    over_ = true;
    return AgentEvent{.kind = AgentEvent::Kind::kFailure, .epoch = epoch_, .report = message.report};
  }
  done_.insert(message.node);
  if (done_.size() < plans_.size()) return std::nullopt;
  over_ = true;
  return AgentEvent{.kind = AgentEvent::Kind::kAllDone, .epoch = epoch_};
}

std::vector<int> JobLog::missing() const {
  std::vector<int> out;
  for (int node = 0; node < static_cast<int>(plans_.size()); ++node) {
    if (!ready_.contains(node)) out.push_back(node);
  }
  return out;
}

}  // namespace lockstep::launch
