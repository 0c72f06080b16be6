#include "lockstep/transport/messages/operation.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::transport::messages {

bool is_want(Failure failure) {
  return failure == Failure::kNoDescriptors || failure == Failure::kNoMemory || failure == Failure::kNoSpace;
}

std::string Operation::text() const {
  const std::string other = peer ? cat("rank ", *peer) : "any rank";
  return cat(direction == Direction::kSend ? "send of " : "recv of ", Bytes(bytes.size()),
             direction == Direction::kSend ? " to " : " from ", other, " (tag ", tag, ")");
}

Status Operation::blame(const Status& status) const { return blame(status, peer); }

Status Operation::blame(const Status& status, std::optional<Rank> other) const {
  Cause cause = status.cause();
  cause.rank = self;
  // What nobody else is said to lack is lacking here.
  cause.peer = is_want(cause.failure) && cause.peer.value_or(self) == self ? self : other;
  cause.op = direction == Direction::kSend ? "send" : "recv";
  return status.with_prefix(cat("rank ", self, ": ", text(), ": ")).with_cause(std::move(cause));
}

Status Operation::timed_out(base::TimePoint now) const {
  const std::string other = peer ? cat("rank ", *peer) : "any rank";
  return blame(Status::timeout(cat("waited ", now - started, " until its deadline; ",
                                   direction == Direction::kSend
                                       ? cat(other, " has not posted a receive for it.")
                                       : cat("no such message has come from ", other, '.'))));
}

void complete_on_strand(Strand& strand, Operation& operation, const Status& status,
                        std::optional<Rank> source) {
  if (operation.done) strand.call(operation.done, status, source);
}

void Started::add(OperationPtr operation) {
  if (operations_.size() >= many_) {
    std::erase_if(operations_, [](const OperationPtr& one) { return !one->done; });
    many_ = std::max<std::size_t>(64, 2 * operations_.size());
  }
  operations_.push_back(std::move(operation));
}

void Started::complete_lost_on_strand(Strand& strand, const Status& why) {
  for (const OperationPtr& operation : operations_) {
    if (operation.use_count() == 1) complete_on_strand(strand, *operation, operation->blame(why));
  }
}

Status unequal(const Operation& operation, Rank other, std::uint64_t size) {
  const bool sends = operation.direction == Direction::kSend;
  const std::string theirs =
      cat("rank ", other, sends ? " has posted a receive of " : " has sent ", size, " bytes");
  return operation.blame(
      Status::invalid(cat(theirs, ", not ", operation.bytes.size(), "; both sides must give the same size.")),
      other);
}

Status withdrawn(const Operation& operation, Rank other, Refusal why, std::string_view what) {
  switch (why) {
    case Refusal::kGroup:
      return operation.blame(
          Status::aborted(cat("rank ", other, " has left the group."), {.failure = Failure::kClosed}), other);
    case Refusal::kFailed:
      return operation.blame(Status::disconnected(cat("the group has failed on rank ", other,
                                                      ", and this rank cannot learn why."),
                                                  {.failure = Failure::kRemoteError}),
                             other);
    case Refusal::kWithdrawn:
    case Refusal::kSize:
    case Refusal::kNone:
      break;
  }
  return operation.blame(Status::timeout(cat("rank ", other, " withdrew ", what, ".")), other);
}

}  // namespace lockstep::transport::messages
