#include "lockstep/transport/messages/outbox.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/transport/messages/channel.h"

namespace lockstep::transport::messages {
namespace {

// What a turn's frames take, about. The rest of the queue has its turn next.
constexpr std::size_t kTurnSize = 128U << 10;
// Answers that the peer has not read. It cannot have asked for more.
constexpr std::size_t kAnswerLimit = 4 * kAskLimit;
constexpr Logger kLog("transport");
constexpr Duration kLogPeriod = std::chrono::minutes(1);

Status off_grammar(std::string_view what, const Frame& frame) {
  return Status::disconnected(cat("it ", what, " message ", frame.id, ", which it cannot know"),
                              {.failure = Failure::kCorruptFrame});
}

Status refusal_status(const Operation& send, Rank peer, const Frame& refusal) {
  if (refusal.refusal == Refusal::kSize) return unequal(send, peer, refusal.room);
  return withdrawn(send, peer, refusal.refusal, "its receive in the middle of the message");
}

}  // namespace

Outbox::Outbox(Channel& channel)
    : channel_(channel), late_refusals_(kLogPeriod, channel.surroundings().loop.clock()) {}

void Outbox::open_on_strand(Connection& connection) {
  connection_ = &connection;
  pump_soon_on_strand();
}

void Outbox::send_on_strand(OperationPtr send) {
  messages_.push_back(std::move(send));
  pump_soon_on_strand();
}

void Outbox::say_on_strand(const Frame& frame) {
  if (channel_.failure()) return;
  answers_.push_back(frame);
  pump_soon_on_strand();
}

// Not at once: a caller may be in the middle of a queue, and what is queued together goes together.
void Outbox::pump_soon_on_strand() {
  if (connection_ == nullptr || std::exchange(pump_posted_, true)) return;
  channel_.surroundings().strand->post([this, channel = channel_.shared_from_this()] {
    pump_posted_ = false;
    pump_on_strand();
  });
}

void Outbox::pump_on_strand() {
  if (connection_ == nullptr) return;
  if (answers_.size() > kAnswerLimit) {
    return channel_.lose_on_strand(Status::disconnected(cat("it does not read ", answers_.size(), " answers"),
                                                        {.failure = Failure::kLimitExceeded}));
  }
  if (sending_ > 0) return;
  turn_.clear();
  for (const Frame& answer : answers_) append(answer);
  answers_.clear();
  while (!messages_.empty() && turn_.size() < kTurnSize && announce_on_strand(messages_.front())) {
    messages_.pop_front();
  }
  const ByteView piece = next_piece_on_strand();
  if (turn_.empty()) return;
  sending_ = piece.empty() ? 1 : 2;
  const Deadline never = channel_.surroundings().never();
  const auto channel = channel_.shared_from_this();
  const auto on_strand = [&](auto then) { return channel_.surroundings().on_strand(std::move(then)); };
  connection_->send(turn_, never,
                    on_strand([this, channel](const Status& status) { turn_sent_on_strand(status); }));
  if (piece.empty()) return;
  connection_->send(piece, never, on_strand([this, channel, size = piece.size()](const Status& status) {
                      piece_sent_on_strand(size, status);
                    }));
}

bool Outbox::announce_on_strand(const OperationPtr& send) {
  const std::size_t size = send->bytes.size();
  const std::size_t cost = eager_cost(size);
  const bool eager =
      size <= kEagerLimit && eager_out_ + cost <= channel_.surroundings().options.eager_budget.value;
  if (!eager && asked_.size() >= kAskLimit) return false;
  send->id = ++last_id_;
  append({.kind = eager ? FrameKind::kEager : FrameKind::kAsk,
          .group = send->group,
          .tag = send->tag,
          .id = send->id,
          .size = size});
  if (!eager) {
    asked_.emplace(send->id, send);
    return true;
  }
  eager_out_ += cost;
  turn_.insert(turn_.end(), send->bytes.begin(), send->bytes.end());
  eager_.push_back(send);
  return true;
}

ByteView Outbox::next_piece_on_strand() {
  while (!moving_.empty() && moving_.front()->moved == 0 && offer_on_strand(moving_.front()))
    moving_.pop_front();
  if (moving_.empty()) return {};
  piece_of_ = std::move(moving_.front());
  moving_.pop_front();
  const Operation& send = *piece_of_;
  const ByteView piece =
      ByteView(send.bytes).subspan(send.moved, std::min(kPieceLimit, send.bytes.size() - send.moved));
  append(
      {.kind = FrameKind::kData, .group = send.group, .tag = send.tag, .id = send.id, .size = piece.size()});
  return piece;
}

bool Outbox::offer_on_strand(const OperationPtr& send) {
  Neighbour* const neighbour = channel_.neighbour();
  if (neighbour == nullptr || offered_) return false;
  const auto offset = neighbour->offset_of(send->bytes);
  if (!offset) return false;
  neighbour->offer(send->id);
  append({.kind = FrameKind::kOffer,
          .group = send->group,
          .tag = send->tag,
          .id = send->id,
          .size = send->bytes.size(),
          .room = *offset});
  offered_ = send;
  return true;
}

void Outbox::append(Frame frame) {
  frame.credit = channel_.inbox().take_credit();
  append_frame(turn_, frame);
}

void Outbox::turn_sent_on_strand(const Status& status) {
  --sending_;
  if (!status.ok()) channel_.lose_on_strand(status);
  for (const OperationPtr& send : std::exchange(eager_, {})) channel_.complete_on_strand(*send, {});
  pump_on_strand();
}

void Outbox::piece_sent_on_strand(std::size_t size, const Status& status) {
  --sending_;
  const OperationPtr send = std::exchange(piece_of_, nullptr);
  if (status.ok()) {
    send->moved += size;
  } else {
    channel_.lose_on_strand(status);
  }
  if (send->moved == send->bytes.size()) {
    channel_.complete_on_strand(*send, {});
  } else if (channel_.failure() || send->withdrawn) {
    channel_.complete_on_strand(*send, send->withdrawn ? *send->withdrawn : send->blame(*channel_.failure()));
    abandon_on_strand(*send);
  } else {
    moving_.push_back(send);
  }
  pump_on_strand();
}

Status Outbox::credited_on_strand(std::uint32_t credit) {
  if (credit > eager_out_) {
    return Status::disconnected(cat("it returns a credit of ", credit, " bytes and has ", eager_out_),
                                {.failure = Failure::kCorruptFrame});
  }
  eager_out_ -= credit;
  return {};
}

Status Outbox::go_on_strand(const Frame& go) {
  if (go.id > last_id_) return off_grammar("wants", go);
  const auto asked = asked_.extract(go.id);
  if (!asked) return {};  // withdrawn, and it will hear so
  const OperationPtr& send = asked.mapped();
  if (send->bytes.empty()) {
    channel_.complete_on_strand(*send, {});
  } else {
    moving_.push_back(send);
  }
  pump_soon_on_strand();
  return {};
}

Status Outbox::taken_on_strand(const Frame& taken) {
  if (taken.id > last_id_) return off_grammar("has taken", taken);
  if (!offered_ || offered_->id != taken.id) return {};  // it was withdrawn at the same time, and has ended
  channel_.complete_on_strand(*std::exchange(offered_, nullptr), {});
  pump_soon_on_strand();
  return {};
}

Status Outbox::refused_on_strand(const Frame& refusal) {
  if (refusal.id > last_id_) return off_grammar("refuses", refusal);
  bool known = false;
  withdraw_on_strand([&](const Operation& send) -> std::optional<Status> {
    if (send.id != refusal.id) return std::nullopt;
    known = true;
    return refusal_status(send, channel_.peer(), refusal);
  });
  if (known || refusal.refusal != Refusal::kSize) return {};
  std::uint64_t others = 0;
  if (!late_refusals_.allow("size", &others)) return {};
  // Nobody here waits for it any more, and no other message has anything to do with it.
  kLog.warn(cat("rank ", channel_.surroundings().options.rank, ": a message of ", refusal.size,
                " bytes to rank ", channel_.peer(), " (tag ", refusal.tag, ") met a receive of ",
                refusal.room,
                " bytes and was thrown away, after its send had ended; both sides must give the same size.",
                others > 0 ? cat(" So were ", others, " before it.") : ""));
  return {};
}

void Outbox::withdraw_from(Sends& sends, const Why& why) {
  std::erase_if(sends, [&](const OperationPtr& send) {
    const auto status = why(*send);
    if (!status) return false;
    channel_.complete_on_strand(*send, *status);
    if (&sends == &moving_) abandon_on_strand(*send);
    return true;
  });
}

void Outbox::withdraw_on_strand(const Why& why) {
  withdraw_from(messages_, why);
  withdraw_from(eager_, why);
  withdraw_from(moving_, why);
  std::erase_if(asked_, [&](const auto& asked) {
    const auto status = why(*asked.second);
    if (!status) return false;
    channel_.complete_on_strand(*asked.second, *status);
    abandon_on_strand(*asked.second);
    return true;
  });
  if (const auto status = offered_ ? why(*offered_) : std::nullopt) {
    const OperationPtr send = std::exchange(offered_, nullptr);
    const bool revoked = channel_.neighbour()->revoke(send->id);
    channel_.complete_on_strand(*send, revoked ? *status : Status());
    if (revoked) abandon_on_strand(*send);
  }
  pump_soon_on_strand();  // some of those that wait may go now
  if (!piece_of_) return;
  if (const auto status = why(*piece_of_)) channel_.take_back_on_strand(*piece_of_, *status);
}

base::TimePoint Outbox::held_since() const {
  return piece_of_ && piece_of_->withdrawn ? piece_of_->withdrawn_at : base::TimePoint::max();
}

void Outbox::abandon_on_strand(const Operation& send) {
  say_on_strand({.kind = FrameKind::kAbandon,
                 .refusal = channel_.surroundings().reason_to_withdraw(send.group),
                 .group = send.group,
                 .tag = send.tag,
                 .id = send.id});
}

}  // namespace lockstep::transport::messages
