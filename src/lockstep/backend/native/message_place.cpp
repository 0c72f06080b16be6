#include "lockstep/backend/native/message_place.h"

#include <new>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::backend {

Status left_the_group(const Status& status, Cause cause, std::string_view where) {
  cause.failure = Failure::kDesync;
  const std::string text = cat(where, "rank ", *cause.peer, " left the group: ", status.message());
  return Status::disconnected(text, std::move(cause));
}

Status MessagePlace::describe(const Status& status) const {
  if (status.ok()) return status;
  try {
    return describe_error(status);
  } catch (const std::bad_alloc&) {
    return status;
  }
}

Status MessagePlace::describe_error(const Status& status) const {
  Cause cause = status.cause();
  const bool nameless = cause.op.empty();
  const bool other = cause.peer && cause.peer != rank;
  // The end of its connection may look like a death, and a door that it has closed like a cut wire. What
  // has ended the group is what it is: somebody who has heard it may have left since.
  const bool own = cause.op == op && cause.rank == rank;
  const bool looks_lost =
      own && (cause.failure == Failure::kPeerDied || cause.failure == Failure::kPeerUnreachable);
  const bool left =
      other && (cause.failure == Failure::kClosed || (looks_lost && has_left && has_left(*cause.peer)));
  if (!cause.rank) cause.rank = rank;
  if (nameless) cause.op = op;
  if (!cause.sequence) cause.sequence = number;
  if (cause.group.empty()) cause.group = group;
  const std::string where = nameless ? cat("rank ", rank, ": ", op, " #", number, ": ") : "";
  if (left) return left_the_group(status, std::move(cause), where);
  if (nameless) return status.with_prefix(where).with_cause(std::move(cause));
  return {status.code(), in_group(status.message()), std::move(cause)};
}

std::string MessagePlace::in_group(std::string_view said) const {
  const std::string own = cat("rank ", rank, ": ");
  if (!said.starts_with(own)) return std::string(said);
  return cat(own, "group ", base::quoted(group), ": ", said.substr(own.size()));
}

}  // namespace lockstep::backend
