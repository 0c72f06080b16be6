#include "lockstep/transport/messages/echoes.h"

#include <algorithm>
#include <utility>

namespace lockstep::transport::messages {

Duration Echoes::grace_of(Failure failure) const {
  switch (failure) {
    case Failure::kPeerUnreachable:
      return graces_.unreachable;
    case Failure::kRemoteError:
      return graces_.failure;
    default:
      return graces_.other;
  }
}

void Echoes::hold_on_strand(Operation& operation, const Status& status, std::optional<Rank> source) {
  if (!operation.done) return;
  const Duration grace = grace_of(status.failure());
  const base::TimePoint now = clock_.now();
  const base::TimePoint due = std::min(now + grace, operation.deadline);
  if (closed_ || due <= now) return strand_.call(operation.done, status, source);
  const auto held =
      held_.emplace(due, Held{.group = operation.group, .done = {}, .status = status, .source = source});
  held->second.done = std::move(operation.done);  // if there is a place for it
  arm_on_strand();
}

void Echoes::complete_on_strand(Held& held) { strand_.call(held.done, held.status, held.source); }

void Echoes::end_group_on_strand(std::uint64_t group, const Status& why) {
  for (auto at = held_.begin(); at != held_.end();) {
    Held& held = at->second;
    if (held.group != group) {
      ++at;
      continue;
    }
    held.status = why;
    complete_on_strand(held);
    at = held_.erase(at);
  }
}

void Echoes::close_on_strand() {
  closed_ = true;
  for (; !held_.empty(); held_.erase(held_.begin())) complete_on_strand(held_.begin()->second);
  timer_.disarm_on_strand();
}

void Echoes::arm_on_strand() {
  if (held_.empty()) return;
  const base::TimePoint next = held_.begin()->first;
  if (timer_.armed() && timer_.at() <= next) return;
  timer_.arm_on_strand(next, [this] {
    const base::TimePoint now = clock_.now();
    for (; !held_.empty() && held_.begin()->first <= now; held_.erase(held_.begin()))
      complete_on_strand(held_.begin()->second);
    arm_on_strand();
  });
}

}  // namespace lockstep::transport::messages
