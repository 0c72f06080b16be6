#include "lockstep/tensor/errors.h"

#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::tensor {
namespace {

template <typename Error>
std::exception_ptr make(const Status& status, std::optional<Rank> at) {
  return std::make_exception_ptr(Error(status, at));
}

std::exception_ptr by_code(const Status& status, std::optional<Rank> at) {
  switch (status.code()) {
    case Code::kInvalid:
      return make<InvalidArgument>(status, at);
    case Code::kTimeout:
      return make<TimeoutError>(status, at);
    case Code::kDisconnected:
      return make<DistNetworkError>(status, at);
    case Code::kUnsupported:
      return make<Unsupported>(status, at);
    default:
      return make<DistBackendError>(status, at);
  }
}

}  // namespace

std::string error_text(const Status& status, std::optional<Rank> at) {
  return at ? cat("[rank", *at, "]: ", status.message()) : std::string(status.message());
}

std::exception_ptr exception_of(const Status& given, std::optional<Rank> at) {
  Cause cause = given.cause();
  if (!cause.rank) cause.rank = at;
  const Status status = given.with_cause(std::move(cause));
  switch (status.failure()) {
    case Failure::kPeerDied:
      return make<PeerDied>(status, at);
    case Failure::kPeerStalled:
      return make<PeerStalled>(status, at);
    case Failure::kPeerUnreachable:
      return make<PeerUnreachable>(status, at);
    case Failure::kDesync:
      return make<Desync>(status, at);
    case Failure::kMissingRanks:
      return make<MissingRanks>(status, at);
    case Failure::kRemoteError:
      return make<RemoteError>(status, at);
    case Failure::kCorruptFrame:
      return make<CorruptFrame>(status, at);
    case Failure::kStoreLost:
      return make<StoreLost>(status, at);
    case Failure::kQueueEmpty:
      return make<QueueEmptyError>(status, at);
    case Failure::kPortTaken:
    case Failure::kNobodyListens:
      return make<SocketError>(status, at);
    case Failure::kNoMemory:
    case Failure::kNoDescriptors:
    case Failure::kNoSpace:
      return make<OutOfResources>(status, at);
    case Failure::kLeftOut:
      return status.code() == Code::kInvalid ? make<InvalidArgument>(status, at) : make<LeftOut>(status, at);
    case Failure::kClosed:
      return status.code() == Code::kInvalid ? make<InvalidArgument>(status, at)
                                             : make<GroupClosed>(status, at);
    case Failure::kRejected:
    case Failure::kVersionMismatch:
      return make<DistNetworkError>(status, at);
    default:
      return by_code(status, at);
  }
}

void throw_error(const Status& status, std::optional<Rank> at) {
  std::rethrow_exception(exception_of(status, at));
}

}  // namespace lockstep::tensor
