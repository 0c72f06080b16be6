#include "lockstep/transport/messages/loopback.h"

#include <algorithm>
#include <utility>

#include "lockstep/transport/messages/frame.h"

namespace lockstep::transport::messages {

void Loopback::send_on_loop(OperationPtr send) {
  Mailbox& mailbox = surroundings_->mailbox;
  const Key key{.group = send->group, .tag = send->tag};
  if (failure_) return complete_on_loop(surroundings_->loop, *send, send->blame(*failure_));
  if (const OperationPtr receive = mailbox.take_receive(key, send->self))
    return meet_on_loop(*receive, *send);
  Arrival arrival{.key = key, .source = send->self, .id = ++last_id_, .size = send->bytes.size()};
  const std::size_t cost = eager_cost(arrival.size);
  if (arrival.size <= kEagerLimit && kept_ + cost <= surroundings_->options.eager_budget.value) {
    kept_ += cost;
    arrival.payload.assign(send->bytes.begin(), send->bytes.end());
    complete_on_loop(surroundings_->loop, *send, {});
  } else {
    arrival.asked = true;
    send->id = arrival.id;
    asked_.emplace(send->id, std::move(send));
  }
  mailbox.keep(std::move(arrival));
}

void Loopback::deliver_on_loop(OperationPtr receive, Arrival arrival) {
  if (!arrival.asked) {
    kept_ -= eager_cost(arrival.size);
    static_cast<void>(copy_on_loop(*receive, arrival.payload));
    return;
  }
  const auto node = asked_.extract(arrival.id);
  meet_on_loop(*receive, *node.mapped());
}

void Loopback::drop_on_loop(const Arrival& arrival) {
  if (!arrival.asked) kept_ -= eager_cost(arrival.size);
}

void Loopback::withdraw_on_loop(const Why& why) {
  for (auto at = asked_.begin(); at != asked_.end();) {
    Operation& send = *at->second;
    const auto status = why(send);
    if (!status) {
      ++at;
      continue;
    }
    surroundings_->mailbox.remove_ask({.group = send.group, .tag = send.tag}, send.self, send.id);
    complete_on_loop(surroundings_->loop, send, *status);
    at = asked_.erase(at);
  }
}

void Loopback::end_on_loop(const Status& why) {
  if (failure_) return;
  failure_ = why;
  withdraw_on_loop([&](const Operation& operation) { return operation.blame(why); });
}

bool Loopback::copy_on_loop(Operation& receive, ByteView payload) {
  const Rank self = receive.self;
  const bool equal = receive.bytes.size() == payload.size();
  if (equal) std::ranges::copy(payload, receive.bytes.begin());
  complete_on_loop(surroundings_->loop, receive, equal ? Status() : unequal(receive, self, payload.size()),
                   self);
  return equal;
}

void Loopback::meet_on_loop(Operation& receive, Operation& send) {
  const bool equal = copy_on_loop(receive, send.bytes);
  complete_on_loop(surroundings_->loop, send,
                   equal ? Status() : unequal(send, send.self, receive.bytes.size()));
}

}  // namespace lockstep::transport::messages
