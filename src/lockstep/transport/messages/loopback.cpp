#include "lockstep/transport/messages/loopback.h"

#include <algorithm>
#include <utility>

#include "lockstep/transport/messages/frame.h"

namespace lockstep::transport::messages {

void Loopback::send_on_strand(OperationPtr send) {
  Mailbox& mailbox = surroundings_->mailbox;
  const Key key{.group = send->group, .tag = send->tag};
  if (failure_) return complete_on_strand(*surroundings_->strand, *send, send->blame(*failure_));
  if (const OperationPtr receive = mailbox.take_receive(key, send->self))
    return meet_on_strand(*receive, *send);
  Arrival arrival{.key = key, .source = send->self, .id = ++last_id_, .size = send->bytes.size()};
  const std::size_t cost = eager_cost(arrival.size);
  if (arrival.size <= kEagerLimit && kept_ + cost <= surroundings_->options.eager_budget.value) {
    kept_ += cost;
    arrival.payload.assign(send->bytes.begin(), send->bytes.end());
    complete_on_strand(*surroundings_->strand, *send, {});
  } else {
    arrival.asked = true;
    send->id = arrival.id;
    asked_.emplace(send->id, std::move(send));
  }
  mailbox.keep(std::move(arrival));
}

void Loopback::deliver_on_strand(OperationPtr receive, Arrival arrival) {
  if (!arrival.asked) {
    kept_ -= eager_cost(arrival.size);
    static_cast<void>(copy_on_strand(*receive, arrival.payload));
    return;
  }
  const auto node = asked_.extract(arrival.id);
  meet_on_strand(*receive, *node.mapped());
}

void Loopback::drop_on_strand(const Arrival& arrival) {
  if (!arrival.asked) kept_ -= eager_cost(arrival.size);
}

void Loopback::withdraw_on_strand(const Why& why) {
  for (auto at = asked_.begin(); at != asked_.end();) {
    Operation& send = *at->second;
    const auto status = why(send);
    if (!status) {
      ++at;
      continue;
    }
    surroundings_->mailbox.remove_ask({.group = send.group, .tag = send.tag}, send.self, send.id);
    complete_on_strand(*surroundings_->strand, send, *status);
    at = asked_.erase(at);
  }
}

void Loopback::end_on_strand(const Status& why) {
  if (failure_) return;
  failure_ = why;
  withdraw_on_strand([&](const Operation& operation) { return operation.blame(why); });
}

bool Loopback::copy_on_strand(Operation& receive, ByteView payload) {
  const Rank self = receive.self;
  const bool equal = receive.bytes.size() == payload.size();
  if (equal) std::ranges::copy(payload, receive.bytes.begin());
  complete_on_strand(*surroundings_->strand, receive,
                     equal ? Status() : unequal(receive, self, payload.size()), self);
  return equal;
}

void Loopback::meet_on_strand(Operation& receive, Operation& send) {
  const bool equal = copy_on_strand(receive, send.bytes);
  complete_on_strand(*surroundings_->strand, send,
                     equal ? Status() : unequal(send, send.self, receive.bytes.size()));
}

}  // namespace lockstep::transport::messages
