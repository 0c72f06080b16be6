// The exceptions of tensor/ and above: torch's tree, and below its classes one for each thing that happens.
//
//   std::invalid_argument
//     InvalidArgument      a call that this rank can see to be wrong: nothing was sent, the group lives on
//   std::runtime_error
//     DistError
//       DistBackendError   the group is dead, and says so again on every later call
//         PeerDied, PeerStalled, Desync, RemoteError, LeftOut, GroupClosed, OutOfResources
//         Unsupported      what this backend cannot do: the group lives on, as after "Nothing was sent."
//       DistNetworkError
//         SocketError, TimeoutError (MissingRanks), PeerUnreachable, CorruptFrame
//       DistStoreError
//         QueueEmptyError, StoreLost
//
// An InvalidArgument is no DistError: what Python reports as ValueError or TypeError is std::invalid_argument
// here. Every one of them has ErrorFields, which say who, where and in which operation.
//
// what() begins with "[rank2]: " where the rank is known, so that an uncaught one names it. No terminate
// handler is installed: that is the program's own.
// Thread safety: values.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/types.h"

namespace lockstep::tensor {

class ErrorFields {
 public:
  explicit ErrorFields(Status status) : status_(std::move(status)) {}

  const Status& status() const { return status_; }
  Code code() const { return status_.code(); }
  Failure failure() const { return status_.failure(); }
  // Without the "[rank2]: " of what().
  std::string_view message() const { return status_.message(); }
  const Cause& cause() const { return status_.cause(); }
  std::optional<Rank> rank() const { return cause().rank; }  // who reports
  std::optional<Rank> peer() const { return cause().peer; }  // whom it is about
  const std::string& op() const { return cause().op; }
  std::optional<std::uint64_t> sequence() const { return cause().sequence; }
  const std::string& group() const { return cause().group; }
  const std::string& host() const { return cause().host; }  // the peer's
  std::optional<int> pid() const { return cause().pid; }
  const std::vector<Rank>& missing() const { return cause().missing; }

 private:
  Status status_;
};

// "[rank2]: message", or the message alone.
std::string error_text(const Status& status, std::optional<Rank> at);

class InvalidArgument : public std::invalid_argument, public ErrorFields {
 public:
  InvalidArgument(const Status& status, std::optional<Rank> at)
      : std::invalid_argument(error_text(status, at)), ErrorFields(status) {}
};

class DistError : public std::runtime_error, public ErrorFields {
 public:
  DistError(const Status& status, std::optional<Rank> at)
      : std::runtime_error(error_text(status, at)), ErrorFields(status) {}
};

class DistBackendError : public DistError {
  using DistError::DistError;
};
class PeerDied : public DistBackendError {
  using DistBackendError::DistBackendError;
};
class PeerStalled : public DistBackendError {
  using DistBackendError::DistBackendError;
};
class Desync : public DistBackendError {
  using DistBackendError::DistBackendError;
};
class RemoteError : public DistBackendError {
  using DistBackendError::DistBackendError;
};
class LeftOut : public DistBackendError {
  using DistBackendError::DistBackendError;
};
// An operation was pending when its group was destroyed.
class GroupClosed : public DistBackendError {
  using DistBackendError::DistBackendError;
};
// Of memory, shared memory or descriptors.
class OutOfResources : public DistBackendError {
  using DistBackendError::DistBackendError;
};

class Unsupported : public DistBackendError {
  using DistBackendError::DistBackendError;
};

class DistNetworkError : public DistError {
  using DistError::DistError;
};
class SocketError : public DistNetworkError {
  using DistNetworkError::DistNetworkError;
};
class TimeoutError : public DistNetworkError {
  using DistNetworkError::DistNetworkError;
};
// missing() has them.
class MissingRanks : public TimeoutError {
  using TimeoutError::TimeoutError;
};
class PeerUnreachable : public DistNetworkError {
  using DistNetworkError::DistNetworkError;
};
class CorruptFrame : public DistNetworkError {
  using DistNetworkError::DistNetworkError;
};

class DistStoreError : public DistError {
  using DistError::DistError;
};
class QueueEmptyError : public DistStoreError {
  using DistStoreError::DistStoreError;
};
class StoreLost : public DistStoreError {
  using DistStoreError::DistStoreError;
};

// The exception for an error: by what happened, else by what the caller can do. `at` is this process's rank,
// where it has one.
std::exception_ptr exception_of(const Status& status, std::optional<Rank> at);
[[noreturn]] void throw_error(const Status& status, std::optional<Rank> at);
inline void throw_if_error(const Status& status, std::optional<Rank> at) {
  if (!status.ok()) throw_error(status, at);
}
// For the layers below, stores above all, whose errors are values: what they give, or the exception for it.
//   const std::int64_t count = lockstep::or_throw(store->add("epochs", 1));
inline void or_throw(const Status& status) { throw_if_error(status, std::nullopt); }
template <typename T>
T or_throw(Result<T> result) {
  or_throw(result.status());
  return std::move(result).value();
}

}  // namespace lockstep::tensor

namespace lockstep {
using tensor::CorruptFrame;
using tensor::Desync;
using tensor::DistBackendError;
using tensor::DistError;
using tensor::DistNetworkError;
using tensor::DistStoreError;
using tensor::ErrorFields;
using tensor::GroupClosed;
using tensor::InvalidArgument;
using tensor::LeftOut;
using tensor::MissingRanks;
using tensor::or_throw;
using tensor::OutOfResources;
using tensor::PeerDied;
using tensor::PeerStalled;
using tensor::PeerUnreachable;
using tensor::QueueEmptyError;
using tensor::RemoteError;
using tensor::SocketError;
using tensor::StoreLost;
using tensor::TimeoutError;
using tensor::Unsupported;
}  // namespace lockstep
