#include "lockstep/transport/messages/pairing.h"

#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/transport/messages/channel.h"
#include "lockstep/transport/messages/frame.h"

namespace lockstep::transport::messages {

void Pairing::connect_on_strand() {
  if (state_ != State::kIdle) return;
  state_ = State::kConnecting;
  Surroundings& around = channel_.surroundings();
  const auto place = static_cast<std::size_t>(peer_.value);
  around.transport.connect({.endpoint = around.options.endpoints[place], .rank = peer_},
                           around.loop.clock().in(around.options.connect_timeout),
                           around.on_strand([this, weak = channel_.weak_from_this()](auto connection) {
                             if (const auto channel = weak.lock()) connected_on_strand(std::move(connection));
                           }));
}

void Pairing::connected_on_strand(Result<std::unique_ptr<Connection>> connection) {
  Surroundings& around = channel_.surroundings();
  if (state_ != State::kConnecting) return;  // another was faster
  if (!connection.ok() && parked_) {
    channel_.outbox().say_on_strand({.kind = FrameKind::kHello});
    return settle_on_strand(std::move(parked_));
  }
  if (!connection.ok()) return channel_.lose_on_strand(connection.status());
  if (peer_ < around.options.rank) return await_hello_on_strand(std::move(connection).value());
  if (parked_) yield_on_strand(std::move(parked_));
  settle_on_strand(std::move(connection).value());
}

void Pairing::accepted_on_strand(std::unique_ptr<Connection> connection) {
  Surroundings& around = channel_.surroundings();
  if (peer_ < around.options.rank) {
    if (state_ == State::kSettled) return around.retire_on_strand(std::move(connection));
    return settle_on_strand(std::move(connection));
  }
  switch (state_) {
    case State::kIdle:
      channel_.outbox().say_on_strand({.kind = FrameKind::kHello});
      return settle_on_strand(std::move(connection));
    case State::kConnecting:
      around.retire_on_strand(std::move(parked_));
      parked_ = std::move(connection);
      return;
    case State::kAwaitsHello:
    case State::kAwaitsPeer:
    case State::kSettled:
      return yield_on_strand(std::move(connection));
  }
}

void Pairing::await_hello_on_strand(std::unique_ptr<Connection> connection) {
  state_ = State::kAwaitsHello;
  own_ = std::move(connection);
  answer_.resize(kFrameSize);
  own_->recv(
      answer_, channel_.surroundings().never(),
      channel_.surroundings().on_strand([this, channel = channel_.shared_from_this(), asked = own_.get()](
                                            const Status& status) { answered_on_strand(asked, status); }));
}

void Pairing::answered_on_strand(const Connection* asked, const Status& status) {
  if (state_ != State::kAwaitsHello || own_.get() != asked) return;
  if (!status.ok()) return channel_.lose_on_strand(status);
  const auto frame = parse_frame(answer_);
  if (!frame.ok()) return channel_.lose_on_strand(frame.status());
  if (frame->kind == FrameKind::kHello) return settle_on_strand(std::move(own_));
  if (frame->kind == FrameKind::kYield) {
    state_ = State::kAwaitsPeer;
    return channel_.surroundings().retire_on_strand(std::move(own_));
  }
  channel_.lose_on_strand(
      Status::disconnected("the first frame of the message stream is neither hello nor yield",
                           {.failure = Failure::kCorruptFrame}));
}

void Pairing::settle_on_strand(std::unique_ptr<Connection> connection) {
  state_ = State::kSettled;
  channel_.surroundings().retire_on_strand(std::move(own_));
  channel_.open_on_strand(std::move(connection));
}

void Pairing::yield_on_strand(std::unique_ptr<Connection> connection) {
  Surroundings& around = channel_.surroundings();
  const auto bytes = std::make_shared<Buffer>();  // shared with the callback, which ends the sending
  append_frame(*bytes, {.kind = FrameKind::kYield});
  Connection& yielded = *connection;
  around.retired.push_back(std::move(connection));
  yielded.send(
      *bytes, around.never(),
      around.on_strand([bytes, channel = channel_.shared_from_this(), yielded = &yielded](const Status&) {
        channel->surroundings().close_retired_on_strand(yielded);
      }));
}

void Pairing::end_on_strand() {
  state_ = State::kSettled;
  channel_.surroundings().retire_on_strand(std::move(own_));
  channel_.surroundings().retire_on_strand(std::move(parked_));
}

}  // namespace lockstep::transport::messages
