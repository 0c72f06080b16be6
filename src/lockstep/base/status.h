// Status and Result: errors as values, for every layer below tensor/.
//
// A Code says what the caller can do about it; a Failure says what happened; a Cause says to whom, in which
// operation, on which host. The message is a whole sentence for a person and names all of that in words.
//
// Thread safety: values; a Status may be copied to any thread (the representation is immutable and shared).
// An ok Status costs one null pointer and no allocation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/base/types.h"

namespace lockstep::base {

// What the caller can do.
enum class Code : std::uint8_t {
  kOk,
  kInvalid,       // fix the call
  kTimeout,       // wait or retry
  kDisconnected,  // rebuild the connection or the group
  kAborted,       // someone stopped us on purpose
  kUnsupported,   // choose another way
  kInternal,      // report it
};
std::string_view code_name(Code code);

// What happened, where a caller may want to tell cases apart. Most statuses are kNone.
enum class Failure : std::uint8_t {
  kNone,
  kPeerDied,
  kPeerUnreachable,
  kPeerStalled,
  kDesync,
  kMissingRanks,
  kRemoteError,
  kCorruptFrame,
  kVersionMismatch,
  kRejected,  // the other side refused the handshake: wrong job, secret or epoch
  kLimitExceeded,
  kStoreLost,
  kQueueEmpty,
  kPortTaken,
  kDuplicateRank,
  kWorldSizeMismatch,
  kMissingVariable,
  kNoSecret,
  kNoMemory,
  kNoDescriptors,
  kNoSpace,        // a disk or segment is full
  kForked,         // used in a child that was forked after it was made
  kClosed,         // used after close() or destroy
  kNobodyListens,  // a connection was refused
  kLeftOut,        // the others have shrunk their world, and go on without this rank
};
std::string_view failure_name(Failure failure);
std::optional<Failure> failure_from_name(std::string_view name);

// Who and when. Fields that are not known stay empty.
struct Cause {
  Failure failure = Failure::kNone;
  std::optional<Rank> rank = {};  // who reports
  std::optional<Rank> peer = {};  // whom it is about
  std::string op = {};
  std::optional<std::uint64_t> sequence = {};
  std::string group = {};
  std::string host = {};  // the peer's
  std::optional<int> pid = {};
  std::vector<Rank> missing = {};

  bool operator==(const Cause&) const = default;
};

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(Code code, std::string message, Cause cause = {},
         std::source_location where = std::source_location::current());

  using Where = std::source_location;
  static Status invalid(std::string message, Cause cause = {}, Where where = Where::current());
  static Status timeout(std::string message, Cause cause = {}, Where where = Where::current());
  static Status disconnected(std::string message, Cause cause = {}, Where where = Where::current());
  static Status aborted(std::string message, Cause cause = {}, Where where = Where::current());
  static Status unsupported(std::string message, Cause cause = {}, Where where = Where::current());
  static Status internal(std::string message, Cause cause = {}, Where where = Where::current());
  // From errno: the code follows the error (EMFILE, ENOSPC, ECONNRESET, ...); the message ends with its text.
  static Status from_errno(std::string_view what, int error, Cause cause = {},
                           Where where = Where::current());

  bool ok() const { return rep_ == nullptr; }
  Code code() const { return rep_ ? rep_->code : Code::kOk; }
  Failure failure() const { return rep_ ? rep_->cause.failure : Failure::kNone; }
  std::string_view message() const { return rep_ ? std::string_view(rep_->message) : std::string_view(); }
  const Cause& cause() const;  // empty when ok
  // Where the error was made, as "file.cpp:42"; empty when ok.
  std::string where() const;

  // The same error with `prefix` before its message; code, cause and place are kept. ok stays ok.
  Status with_prefix(std::string_view prefix) const;
  Status with_cause(Cause cause) const;

  // "disconnected (store_lost): message", "ok".
  std::string text() const;

 private:
  struct Rep {
    Code code;
    std::string message;
    Cause cause;
    std::source_location where;
  };
  // Shared because one failure is quoted by every pending operation.
  std::shared_ptr<const Rep> rep_;
};

inline Status ok_status() { return {}; }

// A value or the Status that explains why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {
    LOCKSTEP_CHECK(!std::get<1>(state_).ok(), "a Result needs a value or an error");
  }

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  Status status() const { return ok() ? Status() : std::get<1>(state_); }

  T& value() & { return checked(); }
  const T& value() const& { return const_cast<Result*>(this)->checked(); }
  T&& value() && { return std::move(checked()); }
  T& operator*() & { return checked(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(checked()); }
  T* operator->() { return &checked(); }
  const T* operator->() const { return &value(); }
  T value_or(T fallback) && { return ok() ? std::move(checked()) : std::move(fallback); }

 private:
  T& checked() {
    if (!ok()) check_failed("Result::value() on an error", std::get<1>(state_).text());
    return std::get<0>(state_);
  }
  std::variant<T, Status> state_;
};

}  // namespace lockstep::base

namespace lockstep {
using base::Cause;
using base::Code;
using base::Failure;
using base::Result;
using base::Status;
}  // namespace lockstep

// Returns from the enclosing function if `expr` (a Status) is an error.
#define LOCKSTEP_TRY(expr)                                                                 \
  do {                                                                                     \
    if (::lockstep::base::Status try_status = (expr); !try_status.ok()) return try_status; \
  } while (false)

// LOCKSTEP_ASSIGN(auto value, expr): the value of `expr` (a Result), or returns its error.
#define LOCKSTEP_ASSIGN(declaration, expr) \
  LOCKSTEP_ASSIGN_IMPL(declaration, expr, LOCKSTEP_CONCAT(try_result_, __LINE__))
#define LOCKSTEP_ASSIGN_IMPL(declaration, expr, name) \
  auto name = (expr);                                 \
  if (!name.ok()) return std::move(name).status();    \
  declaration = std::move(name).value()
#define LOCKSTEP_CONCAT(a, b) LOCKSTEP_CONCAT_IMPL(a, b)
#define LOCKSTEP_CONCAT_IMPL(a, b) a##b
