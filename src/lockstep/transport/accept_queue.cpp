#include "lockstep/transport/accept_queue.h"

#include <iterator>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::transport {

AcceptQueue::AcceptQueue(Loop& loop, const Identity& identity, base::Endpoint endpoint)
    : loop_(loop), self_(identity.text()), rank_(identity.rank), endpoint_(std::move(endpoint)) {}

void AcceptQueue::accept_on_loop(base::TimePoint deadline, Connected done) {
  Call& call = calls_.emplace_back(loop_);
  const auto place = std::prev(calls_.end());
  call.started = loop_.clock().now();
  call.done = std::move(done);
  if (closed_) return answer_on_loop(place, closed_status());
  if (!connections_.empty()) {
    auto connection = std::move(connections_.front());
    connections_.pop_front();
    return answer_on_loop(place, std::move(connection));
  }
  call.timer.arm_on_loop(deadline, [this, place] { expire_on_loop(place); });
}

void AcceptQueue::offer_on_loop(std::unique_ptr<Connection> connection) {
  if (closed_) return;
  if (calls_.empty()) return connections_.push_back(std::move(connection));
  answer_on_loop(calls_.begin(), std::move(connection));
}

void AcceptQueue::close_on_loop() {
  if (std::exchange(closed_, true)) return;
  while (!calls_.empty()) answer_on_loop(calls_.begin(), closed_status());
  connections_.clear();
}

void AcceptQueue::expire_on_loop(Calls::iterator call) {
  const Duration waited = loop_.clock().now() - call->started;
  answer_on_loop(call, Status::timeout(cat(self_, ": accept on ", endpoint_.text(), " waited ", waited,
                                           " and nobody came."),
                                       cause(Failure::kNone)));
}

void AcceptQueue::answer_on_loop(Calls::iterator call, Result<std::unique_ptr<Connection>> answer) {
  loop_.post(
      [done = std::move(call->done), answer = std::move(answer)]() mutable { done(std::move(answer)); });
  calls_.erase(call);
}

Status AcceptQueue::closed_status() const {
  return Status::aborted(cat(self_, " closed its listener on ", endpoint_.text(), '.'),
                         cause(Failure::kClosed));
}

Cause AcceptQueue::cause(Failure failure) const {
  return {.failure = failure, .rank = rank_, .op = "accept", .host = endpoint_.text()};
}

}  // namespace lockstep::transport
