#include "lockstep/transport/messages/departures.h"

#include "lockstep/base/text.h"
#include "lockstep/transport/messages/channel.h"

namespace lockstep::transport::messages {
namespace {

// Groups of which a peer may ask at the same time.
constexpr std::size_t kGroupLimit = 1U << 16;

}  // namespace

void Departures::ask_on_strand(std::uint64_t group) {
  if (!asked_.emplace(group, Refusal::kNone).second) return;
  channel_.outbox().say_on_strand({.kind = FrameKind::kWatch, .group = group});
  channel_.seek_on_strand();
}

std::optional<Refusal> Departures::ended_there(std::uint64_t group) const {
  const auto found = asked_.find(group);
  return found == asked_.end() || found->second == Refusal::kNone ? std::nullopt
                                                                  : std::optional(found->second);
}

void Departures::end_group_on_strand(std::uint64_t group) {
  asked_.erase(group);
  if (wanted_.erase(group) > 0) say_left_on_strand(group);
}

Status Departures::asked_on_strand(const Frame& frame) {
  if (channel_.surroundings().mailbox.ended(frame.group) != nullptr) {
    say_left_on_strand(frame.group);
    return {};
  }
  wanted_.insert(frame.group);
  if (wanted_.size() <= kGroupLimit) return {};
  return Status::disconnected(cat("it asks about more than ", kGroupLimit, " groups"),
                              {.failure = Failure::kLimitExceeded});
}

void Departures::left_on_strand(const Frame& frame) {
  const auto found = asked_.find(frame.group);
  if (found == asked_.end()) return;  // it has ended here, too
  found->second = frame.refusal;
  const Rank peer = channel_.peer();
  const auto receives = channel_.surroundings().mailbox.withdraw([&](const Operation& receive) {
    const bool waits = receive.group == frame.group && receive.peer == peer;
    return waits ? std::optional(withdrawn(receive, peer, frame.refusal, "")) : std::nullopt;
  });
  for (const auto& [receive, status] : receives) channel_.complete_on_strand(*receive, status);
  channel_.surroundings().peer_is_gone();
}

void Departures::say_left_on_strand(std::uint64_t group) {
  channel_.outbox().say_on_strand({.kind = FrameKind::kLeft,
                                   .refusal = channel_.surroundings().reason_to_withdraw(group),
                                   .group = group});
}

}  // namespace lockstep::transport::messages
