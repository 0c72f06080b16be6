#include "lockstep/transport/messages/inbox.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/transport/messages/channel.h"

namespace lockstep::transport::messages {
namespace {

constexpr std::size_t kWasteSize = 64U << 10;

Key key_of(const Frame& frame) { return {.group = frame.group, .tag = frame.tag}; }

// The frame that it came with.
Frame frame_of(const Arrival& arrival) {
  return {.kind = arrival.asked ? FrameKind::kAsk : FrameKind::kEager,
          .group = arrival.key.group,
          .tag = arrival.key.tag,
          .id = arrival.id,
          .size = arrival.size};
}

Status off_limit(std::string_view what, std::size_t limit) {
  return Status::disconnected(cat("it has sent more ", what, " than ", limit, " before they were received"),
                              {.failure = Failure::kLimitExceeded});
}

Status off_grammar(std::string_view what) {
  return Status::disconnected(cat("it has sent ", what), {.failure = Failure::kCorruptFrame});
}

}  // namespace

void Inbox::open_on_strand(Connection& connection) {
  connection_ = &connection;
  read_frame_on_strand();
}

void Inbox::read_frame_on_strand() {
  if (channel_.failure()) return;
  frame_.resize(kFrameSize);
  read_on_strand(frame_, [this] {
    const auto frame = parse_frame(frame_);
    const Status status = frame.ok() ? handle_on_strand(*frame) : frame.status();
    if (!status.ok()) channel_.lose_on_strand(status);
  });
}

void Inbox::read_on_strand(ByteSpan bytes, Then then) {
  connection_->recv(bytes, channel_.surroundings().never(),
                    channel_.surroundings().on_strand([this, channel = channel_.shared_from_this(),
                                                       then = std::move(then)](const Status& status) {
                      if (status.ok()) return then();
                      channel->lose_on_strand(status);  // takes back what is being read
                      if (const OperationPtr receive = std::exchange(reading_, nullptr)) {
                        // Its group may end later, and must not find it again.
                        for (auto& [id, message] : incoming_) {
                          if (message.receive == receive) message.receive = nullptr;
                        }
                        channel->complete_on_strand(*receive, *receive->withdrawn);
                      }
                    }));
}

void Inbox::throw_away_on_strand(std::uint64_t count, Then then) {
  if (count == 0 || channel_.failure()) return then();
  waste_.resize(kWasteSize);
  const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(count, kWasteSize));
  read_on_strand(ByteSpan(waste_).first(part), [this, rest = count - part, then = std::move(then)]() mutable {
    throw_away_on_strand(rest, std::move(then));
  });
}

Status Inbox::handle_on_strand(const Frame& frame) {
  LOCKSTEP_TRY(channel_.outbox().credited_on_strand(frame.credit));
  const bool announces = frame.kind == FrameKind::kEager || frame.kind == FrameKind::kAsk;
  if (announces && frame.id != ++last_id_)
    return off_grammar(cat("message ", frame.id, " in place of ", last_id_));
  switch (frame.kind) {
    case FrameKind::kEager:
      return eager_on_strand(frame);
    case FrameKind::kData:
      return data_on_strand(frame);
    case FrameKind::kAsk:
      LOCKSTEP_TRY(asked_on_strand(frame));
      break;
    case FrameKind::kGo:
      LOCKSTEP_TRY(channel_.outbox().go_on_strand(frame));
      break;
    case FrameKind::kRefuse:
      LOCKSTEP_TRY(channel_.outbox().refused_on_strand(frame));
      break;
    case FrameKind::kOffer:
      LOCKSTEP_TRY(offered_on_strand(frame));
      break;
    case FrameKind::kTaken:
      LOCKSTEP_TRY(channel_.outbox().taken_on_strand(frame));
      break;
    case FrameKind::kAbandon:
      abandoned_on_strand(frame);
      break;
    case FrameKind::kWatch:
      LOCKSTEP_TRY(channel_.departures().asked_on_strand(frame));
      break;
    case FrameKind::kLeft:
      channel_.departures().left_on_strand(frame);
      break;
    case FrameKind::kCredit:
      break;
    case FrameKind::kHello:
    case FrameKind::kYield:
      return off_grammar("a frame that belongs to the start of a connection");
  }
  read_frame_on_strand();
  return {};
}

Status Inbox::eager_on_strand(const Frame& frame) {
  Surroundings& around = channel_.surroundings();
  const std::size_t cost = eager_cost(frame.size);
  const auto budget = static_cast<std::size_t>(around.options.eager_budget.value);
  if (kept_ + cost > budget) return off_limit("bytes", budget);
  kept_ += cost;
  const auto next = [this, cost] {
    free_on_strand(cost);
    read_frame_on_strand();
  };
  if (around.mailbox.ended(frame.group) != nullptr) {
    throw_away_on_strand(frame.size, next);
    return {};
  }
  if (const OperationPtr receive = around.mailbox.take_receive(key_of(frame), channel_.peer())) {
    if (receive->bytes.size() != frame.size) {
      refuse_size_on_strand(*receive, frame);
      throw_away_on_strand(frame.size, next);
      return {};
    }
    reading_ = receive;
    read_on_strand(receive->bytes, [this, next] {
      channel_.complete_on_strand(*std::exchange(reading_, nullptr), {});
      next();
    });
    return {};
  }
  // Shared with the callback that is copied on the way.
  const auto payload = std::make_shared<Buffer>(static_cast<std::size_t>(frame.size));
  read_on_strand(*payload, [this, frame, payload] {
    keep_on_strand(frame, std::move(*payload));
    read_frame_on_strand();
  });
  return {};
}

// A receive may have been posted while the payload was read.
void Inbox::keep_on_strand(const Frame& frame, Buffer payload) {
  Mailbox& mailbox = channel_.surroundings().mailbox;
  if (mailbox.ended(frame.group) != nullptr) return free_on_strand(eager_cost(frame.size));
  if (const OperationPtr receive = mailbox.take_receive(key_of(frame), channel_.peer())) {
    return fill_on_strand(*receive, payload, frame);
  }
  mailbox.keep({.key = key_of(frame),
                .source = channel_.peer(),
                .id = frame.id,
                .size = frame.size,
                .payload = std::move(payload)});
}

Status Inbox::asked_on_strand(const Frame& frame) {
  Mailbox& mailbox = channel_.surroundings().mailbox;
  if (mailbox.ended(frame.group) != nullptr) {
    refuse_on_strand(frame, channel_.surroundings().reason_to_withdraw(frame.group));
    return {};
  }
  if (OperationPtr receive = mailbox.take_receive(key_of(frame), channel_.peer())) {
    start_on_strand(std::move(receive), frame);
    return {};
  }
  if (++asks_ > kAskLimit) return off_limit("messages", kAskLimit);
  mailbox.keep(
      {.key = key_of(frame), .source = channel_.peer(), .id = frame.id, .size = frame.size, .asked = true});
  return {};
}

// The receive and the message that asked have met.
void Inbox::start_on_strand(OperationPtr receive, const Frame& ask) {
  if (receive->bytes.size() != ask.size) return refuse_size_on_strand(*receive, ask);
  channel_.outbox().say_on_strand({.kind = FrameKind::kGo, .group = ask.group, .tag = ask.tag, .id = ask.id});
  if (ask.size == 0) return channel_.complete_on_strand(*receive, {});
  incoming_.emplace(ask.id, Incoming{.receive = std::move(receive), .left = ask.size});
}

Status Inbox::data_on_strand(const Frame& frame) {
  const auto found = incoming_.find(frame.id);
  if (found == incoming_.end()) return off_grammar(cat("a piece of message ", frame.id, " unasked"));
  Incoming& message = found->second;
  if (frame.size > message.left) {
    return off_grammar(
        cat("a piece of ", frame.size, " bytes of which only ", message.left, " were to come"));
  }
  if (!message.receive) {
    throw_away_on_strand(frame.size, [this, frame] { piece_read_on_strand(frame); });
    return {};
  }
  reading_ = message.receive;
  read_on_strand(reading_->bytes.subspan(reading_->moved, static_cast<std::size_t>(frame.size)),
                 [this, frame] { piece_read_on_strand(frame); });
  return {};
}

void Inbox::piece_read_on_strand(const Frame& frame) {
  const OperationPtr receive = std::exchange(reading_, nullptr);
  const auto found = incoming_.find(frame.id);
  if (found != incoming_.end() && (found->second.left -= frame.size) == 0) incoming_.erase(found);
  if (receive) {
    receive->moved += static_cast<std::size_t>(frame.size);
    if (receive->moved == receive->bytes.size()) {
      channel_.complete_on_strand(*receive, {});
    } else if (receive->withdrawn) {
      channel_.complete_on_strand(*receive, *receive->withdrawn);
      if (const auto rest = incoming_.find(frame.id); rest != incoming_.end()) rest->second.receive = nullptr;
      refuse_on_strand(frame, channel_.surroundings().reason_to_withdraw(frame.group));
    }
  }
  read_frame_on_strand();
}

Status Inbox::offered_on_strand(const Frame& frame) {
  const auto found = incoming_.find(frame.id);
  if (channel_.neighbour() == nullptr || found == incoming_.end() || found->second.left != frame.size ||
      found->second.offered != nullptr)
    return off_grammar(cat("an offer of message ", frame.id, " that nobody has asked for"));
  found->second.offered = channel_.neighbour()->offered(frame.room, frame.size);
  if (found->second.offered == nullptr)
    return off_grammar(cat("an offer of ", frame.size, " bytes at ", frame.room, ", outside of its memory"));
  return {};
}

bool Inbox::copy_on_strand() {
  bool copied = false;
  for (auto at = incoming_.begin(); at != incoming_.end() && !channel_.failure();) {
    const auto id = at->first;
    Incoming& message = at->second;
    ++at;
    if (message.offered == nullptr || !message.receive) continue;
    Operation& receive = *message.receive;
    const std::size_t size = std::min(kPieceLimit, receive.bytes.size() - receive.moved);
    std::memcpy(receive.bytes.data() + receive.moved, message.offered + receive.moved, size);
    receive.moved += size;
    copied = true;
    if (receive.moved == receive.bytes.size()) copied_on_strand(id, receive);
  }
  return copied;
}

void Inbox::copied_on_strand(std::uint64_t id, Operation& receive) {
  if (!channel_.neighbour()->take(id)) {
    incoming_.at(id).offered = nullptr;  // it was revoked: why, its sender says
    return;
  }
  channel_.complete_on_strand(receive, {});
  channel_.outbox().say_on_strand(
      {.kind = FrameKind::kTaken, .group = receive.group, .tag = receive.tag, .id = id});
  incoming_.erase(id);
}

void Inbox::abandoned_on_strand(const Frame& frame) {
  if (channel_.surroundings().mailbox.remove_ask(key_of(frame), channel_.peer(), frame.id)) {
    --asks_;
    return;
  }
  const auto message = incoming_.extract(frame.id);
  if (!message || !message.mapped().receive) return;
  withdrawn_on_strand(*message.mapped().receive, frame.refusal);
}

void Inbox::withdrawn_on_strand(Operation& receive, Refusal why) {
  channel_.complete_on_strand(
      receive, withdrawn(receive, channel_.peer(), why, "the message before all of it had come"));
}

void Inbox::deliver_on_strand(OperationPtr receive, Arrival arrival) {
  const Frame frame = frame_of(arrival);
  if (!arrival.asked) return fill_on_strand(*receive, arrival.payload, frame);
  --asks_;
  start_on_strand(std::move(receive), frame);
}

void Inbox::drop_on_strand(const Arrival& arrival) {
  if (!arrival.asked) return free_on_strand(eager_cost(arrival.size));
  --asks_;
  refuse_on_strand(frame_of(arrival), channel_.surroundings().reason_to_withdraw(arrival.key.group));
}

void Inbox::fill_on_strand(Operation& receive, ByteView payload, const Frame& frame) {
  free_on_strand(eager_cost(frame.size));
  if (receive.bytes.size() != payload.size()) return refuse_size_on_strand(receive, frame);
  std::ranges::copy(payload, receive.bytes.begin());
  channel_.complete_on_strand(receive, {});
}

void Inbox::refuse_size_on_strand(Operation& receive, const Frame& frame) {
  channel_.complete_on_strand(receive, unequal(receive, channel_.peer(), frame.size));
  refuse_on_strand(frame, Refusal::kSize, receive.bytes.size());
}

void Inbox::refuse_on_strand(const Frame& frame, Refusal refusal, std::uint64_t room) {
  channel_.outbox().say_on_strand({.kind = FrameKind::kRefuse,
                                   .refusal = refusal,
                                   .group = frame.group,
                                   .tag = frame.tag,
                                   .id = frame.id,
                                   .size = frame.size,
                                   .room = room});
}

// Told at once when it is much, else along with whatever goes next.
void Inbox::free_on_strand(std::size_t cost) {
  kept_ -= cost;
  freed_ += cost;
  if (freed_ >= channel_.surroundings().options.eager_budget.value / 4) {
    channel_.outbox().say_on_strand({.kind = FrameKind::kCredit});
  }
}

std::uint32_t Inbox::take_credit() { return static_cast<std::uint32_t>(std::exchange(freed_, 0)); }

void Inbox::withdraw_on_strand(const Why& why) {
  if (reading_) {
    if (const auto status = why(*reading_)) channel_.take_back_on_strand(*reading_, *status);
  }
  for (auto& [id, message] : incoming_) {
    if (!message.receive || message.receive == reading_) continue;
    const auto status = why(*message.receive);
    if (!status) continue;
    channel_.complete_on_strand(*message.receive, *status);
    refuse_on_strand({.group = message.receive->group, .tag = message.receive->tag, .id = id},
                     channel_.surroundings().reason_to_withdraw(message.receive->group));
    message.receive = nullptr;
  }
}

base::TimePoint Inbox::held_since() const {
  return reading_ && reading_->withdrawn ? reading_->withdrawn_at : base::TimePoint::max();
}

}  // namespace lockstep::transport::messages
