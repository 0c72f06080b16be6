#include "lockstep/base/status.h"

#include <cerrno>
#include <cstring>

#include "lockstep/base/text.h"

namespace lockstep::base {
namespace {

struct FailureName {
  Failure failure;
  std::string_view name;
};
constexpr FailureName kFailureNames[] = {
    {Failure::kNone, "none"},
    {Failure::kPeerDied, "peer_died"},
    {Failure::kPeerUnreachable, "peer_unreachable"},
    {Failure::kPeerStalled, "peer_stalled"},
    {Failure::kDesync, "desync"},
    {Failure::kMissingRanks, "missing_ranks"},
    {Failure::kRemoteError, "remote_error"},
    {Failure::kCorruptFrame, "corrupt_frame"},
    {Failure::kVersionMismatch, "version_mismatch"},
    {Failure::kRejected, "rejected"},
    {Failure::kLimitExceeded, "limit_exceeded"},
    {Failure::kStoreLost, "store_lost"},
    {Failure::kQueueEmpty, "queue_empty"},
    {Failure::kPortTaken, "port_taken"},
    {Failure::kDuplicateRank, "duplicate_rank"},
    {Failure::kWorldSizeMismatch, "world_size_mismatch"},
    {Failure::kMissingVariable, "missing_variable"},
    {Failure::kNoSecret, "no_secret"},
    {Failure::kNoMemory, "no_memory"},
    {Failure::kNoDescriptors, "no_descriptors"},
    {Failure::kNoSpace, "no_space"},
    {Failure::kForked, "forked"},
    {Failure::kClosed, "closed"},
    {Failure::kNobodyListens, "nobody_listens"},
    {Failure::kLeftOut, "left_out"},
};

// What the caller can do about an errno, and what it means.
std::pair<Code, Failure> classify(int error) {
  switch (error) {
    case EMFILE:
    case ENFILE:
      return {Code::kInternal, Failure::kNoDescriptors};
    case ENOMEM:
    case ENOBUFS:
      return {Code::kInternal, Failure::kNoMemory};
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return {Code::kInternal, Failure::kNoSpace};
    case EADDRINUSE:
      return {Code::kInvalid, Failure::kPortTaken};
    case ETIMEDOUT:
    case EAGAIN:
      return {Code::kTimeout, Failure::kNone};
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case ENOTCONN:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case ENETRESET:
      return {Code::kDisconnected, Failure::kNone};
    case EINVAL:
    case EACCES:
    case EPERM:
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EROFS:
    case EEXIST:
    case EADDRNOTAVAIL:
    case ENAMETOOLONG:
      return {Code::kInvalid, Failure::kNone};
    case ENOSYS:
    case EOPNOTSUPP:
    case EAFNOSUPPORT:
      return {Code::kUnsupported, Failure::kNone};
    default:
      return {Code::kInternal, Failure::kNone};
  }
}

}  // namespace

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalid:
      return "invalid";
    case Code::kTimeout:
      return "timeout";
    case Code::kDisconnected:
      return "disconnected";
    case Code::kAborted:
      return "aborted";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kInternal:
      return "internal";
  }
  return "unknown";
}

std::string_view failure_name(Failure failure) {
  for (const FailureName& entry : kFailureNames) {
    if (entry.failure == failure) return entry.name;
  }
  return "unknown";
}

std::optional<Failure> failure_from_name(std::string_view name) {
  for (const FailureName& entry : kFailureNames) {
    if (entry.name == name) return entry.failure;
  }
  return std::nullopt;
}

Status::Status(Code code, std::string message, Cause cause, std::source_location where)
    : rep_(code == Code::kOk
               ? nullptr
               : std::make_shared<const Rep>(Rep{code, std::move(message), std::move(cause), where})) {}

Status Status::invalid(std::string message, Cause cause, Where where) {
  return {Code::kInvalid, std::move(message), std::move(cause), where};
}
Status Status::timeout(std::string message, Cause cause, Where where) {
  return {Code::kTimeout, std::move(message), std::move(cause), where};
}
Status Status::disconnected(std::string message, Cause cause, Where where) {
  return {Code::kDisconnected, std::move(message), std::move(cause), where};
}
Status Status::aborted(std::string message, Cause cause, Where where) {
  return {Code::kAborted, std::move(message), std::move(cause), where};
}
Status Status::unsupported(std::string message, Cause cause, Where where) {
  return {Code::kUnsupported, std::move(message), std::move(cause), where};
}
Status Status::internal(std::string message, Cause cause, Where where) {
  return {Code::kInternal, std::move(message), std::move(cause), where};
}

Status Status::from_errno(std::string_view what, int error, Cause cause, Where where) {
  const auto [code, failure] = classify(error);
  if (cause.failure == Failure::kNone) cause.failure = failure;
  // strerrordesc_np is thread-safe and does not follow the locale, unlike strerror.
  const char* text = ::strerrordesc_np(error);
  return {code, cat(what, ": ", text != nullptr ? text : cat("error ", error)), std::move(cause), where};
}

const Cause& Status::cause() const {
  static const Cause kEmpty;
  return rep_ ? rep_->cause : kEmpty;
}

std::string Status::where() const {
  if (!rep_) return {};
  std::string_view file = rep_->where.file_name();
  file.remove_prefix(file.rfind('/') + 1);
  return cat(file, ":", rep_->where.line());
}

Status Status::with_prefix(std::string_view prefix) const {
  if (ok()) return {};
  return {rep_->code, cat(prefix, rep_->message), rep_->cause, rep_->where};
}

Status Status::with_cause(Cause cause) const {
  if (ok()) return {};
  return {rep_->code, rep_->message, std::move(cause), rep_->where};
}

std::string Status::text() const {
  if (ok()) return "ok";
  if (failure() == Failure::kNone) return cat(code_name(code()), ": ", message());
  return cat(code_name(code()), " (", failure_name(failure()), "): ", message());
}

}  // namespace lockstep::base
