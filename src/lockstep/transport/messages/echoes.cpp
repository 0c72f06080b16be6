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
  const base::TimePoint due = std::min(clock_.now() + grace, operation.deadline);
  if (closed_ || grace == Duration::zero()) return strand_.call(operation.done, status, source);
  held_.push_back({.group = operation.group, .done = {}, .status = status, .source = source, .due = due});
  held_.back().done = std::move(operation.done);  // if there is a place for it
  arm_on_strand();
}

void Echoes::complete_on_strand(Held& held) { strand_.call(held.done, held.status, held.source); }

void Echoes::end_group_on_strand(std::uint64_t group, const Status& why) {
  std::erase_if(held_, [&](Held& held) {
    if (held.group != group) return false;
    held.status = why;
    complete_on_strand(held);
    return true;
  });
}

void Echoes::close_on_strand() {
  closed_ = true;
  for (; !held_.empty(); held_.pop_front()) complete_on_strand(held_.front());
  timer_.disarm_on_strand();
}

void Echoes::arm_on_strand() {
  if (held_.empty()) return;
  base::TimePoint next = base::TimePoint::max();
  for (const Held& held : held_) next = std::min(next, held.due);
  timer_.arm_on_strand(next, [this] {
    const base::TimePoint now = clock_.now();
    std::erase_if(held_, [&](Held& held) {
      if (held.due > now) return false;
      complete_on_strand(held);
      return true;
    });
    arm_on_strand();
  });
}

}  // namespace lockstep::transport::messages
