#include "lockstep/transport/messages/channel.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::transport::messages {

Channel::Channel(std::shared_ptr<Surroundings> surroundings, Rank peer)
    : surroundings_(std::move(surroundings)),
      peer_(peer),
      pairing_(*this, peer),
      outbox_(*this),
      inbox_(*this),
      departures_(*this),
      stall_(surroundings_->strand, surroundings_->loop) {}

void Channel::send_on_strand(OperationPtr send) {
  if (failure_) return complete_on_strand(*send, send->blame(*failure_));
  outbox_.send_on_strand(std::move(send));
  pairing_.connect_on_strand();
}

void Channel::deliver_on_strand(OperationPtr receive, Arrival arrival) {
  inbox_.deliver_on_strand(std::move(receive), std::move(arrival));
}

void Channel::drop_on_strand(const Arrival& arrival) { inbox_.drop_on_strand(arrival); }

void Channel::accepted_on_strand(std::unique_ptr<Connection> connection) {
  if (failure_) return surroundings_->retire_on_strand(std::move(connection));
  pairing_.accepted_on_strand(std::move(connection));
}

void Channel::seek_on_strand() {
  if (!failure_) pairing_.connect_on_strand();
}

void Channel::join_on_strand(std::unique_ptr<Neighbour> neighbour) {
  neighbour_ = neighbour.get();
  pairing_.end_on_strand();
  open_on_strand(std::move(neighbour));
}

bool Channel::move_on_strand() {
  const bool moved = neighbour_->move_on_strand();
  return inbox_.copy_on_strand() || moved;
}

void Channel::open_on_strand(std::unique_ptr<Connection> connection) {
  connection_ = std::move(connection);
  outbox_.open_on_strand(*connection_);
  inbox_.open_on_strand(*connection_);
}

void Channel::withdraw_on_strand(const Why& why) {
  outbox_.withdraw_on_strand(why);
  inbox_.withdraw_on_strand(why);
}

void Channel::give_up_on_strand(const Status& why) {
  if (held_since() != base::TimePoint::max()) end_on_strand(why);
}

void Channel::lose_on_strand(const Status& why) {
  if (failure_) return;
  const Rank own = surroundings_->options.rank;
  const bool ours = is_want(why.failure());
  Cause cause = why.cause();
  cause.rank = own;
  cause.peer = ours ? own : peer_;
  const std::string prefix = cat("rank ", peer_, ours ? " cannot be reached from here: " : " is lost: ");
  end_on_strand(why.with_prefix(prefix).with_cause(std::move(cause)));
  if (ours) surroundings_->tell_failed_on_strand(*failure_, peer_);
}

void Channel::end_on_strand(const Status& why) {
  if (failure_) return;
  failure_ = why;
  stall_.disarm_on_strand();
  pairing_.end_on_strand();
  outbox_.close_on_strand();
  const bool leaves = why.failure() == Failure::kClosed;
  if (neighbour_ != nullptr) neighbour_->close(leaves ? shm::Pipes::Why::kLeft : shm::Pipes::Why::kFailed);
  surroundings_->retire_on_strand(std::move(connection_));
  const Why lost = [&](const Operation& operation) { return operation.blame(*failure_, peer_); };
  withdraw_on_strand(lost);
  surroundings_->mailbox.remove_asks_from(peer_);
  const auto receives = surroundings_->mailbox.withdraw([&](const Operation& receive) {
    return receive.peer == peer_ ? std::optional(receive.blame(*failure_)) : std::nullopt;
  });
  for (const auto& [receive, status] : receives) complete_on_strand(*receive, status);
  surroundings_->peer_is_gone();
}

void Channel::complete_on_strand(Operation& operation, const Status& status) {
  const auto source = operation.direction == Direction::kRecv ? std::optional(peer_) : std::nullopt;
  // What is wrong with the call itself is nobody's echo.
  const bool certain = status.ok() || status.code() == Code::kInvalid ||
                       surroundings_->mailbox.ended(operation.group) != nullptr;
  if (certain) return messages::complete_on_strand(*surroundings_->strand, operation, status, source);
  surroundings_->echoes->hold_on_strand(operation, status, source);
}

void Channel::take_back_on_strand(Operation& operation, const Status& status) {
  const Status* const ended = surroundings_->mailbox.ended(operation.group);
  const bool again = operation.withdrawn.has_value();
  if (ended != nullptr) {
    operation.withdrawn = *ended;
  } else if (!again) {
    operation.withdrawn = status;
  }
  if (again) return;
  operation.withdrawn_at = surroundings_->loop.clock().now();
  if (!stall_.armed() && !failure_) watch_on_strand(operation.withdrawn_at);
}

base::TimePoint Channel::held_since() const { return std::min(outbox_.held_since(), inbox_.held_since()); }

void Channel::watch_on_strand(base::TimePoint since) {
  stall_.arm_on_strand(since + surroundings_->options.stall_timeout, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->look_for_stall_on_strand();
  });
}

void Channel::look_for_stall_on_strand() {
  const Duration limit = surroundings_->options.stall_timeout;
  const auto since = held_since();
  if (failure_ || since == base::TimePoint::max()) return;
  if (since + limit > surroundings_->loop.clock().now()) return watch_on_strand(since);
  lose_on_strand(Status::timeout(
      cat("for ", limit, " it has not moved the rest of a message that was withdrawn in the middle."),
      {.failure = Failure::kPeerStalled}));
}

}  // namespace lockstep::transport::messages
