#include "extension/errors.h"

#include <c10/util/Exception.h>

#include <string>
#include <string_view>

#include "lockstep/base/text.h"

namespace lockstep::python {
namespace {

template <typename Error>
std::exception_ptr make(const Status& status) {
  return std::make_exception_ptr(Error({__func__, __FILE__, __LINE__}, std::string(status.message())));
}

// Programs look for these words: for "timeout", and for gloo's sentences of a monitored barrier.
Status with_torchs_words(const Status& status) {
  if (status.message().find("timeout") != std::string_view::npos) return status;
  std::string words = "; its timeout is over";
  const Cause& cause = status.cause();
  if (cause.op == "monitored_barrier" && cause.rank && !cause.missing.empty()) {
    words += cat(", or as gloo says it: Rank ", *cause.rank, " timed out in monitoredBarrier: Rank ",
                 cause.missing.front(), " failed to pass monitoredBarrier");
  }
  std::string_view message = status.message();
  const bool is_sentence = message.ends_with('.');
  if (is_sentence) message.remove_suffix(1);
  return {status.code(), cat(message, words, is_sentence ? "." : ""), cause};
}

}  // namespace

std::exception_ptr torch_exception(const Status& status) {
  switch (status.failure()) {
    case Failure::kStoreLost:
      return make<c10::DistStoreError>(status);
    case Failure::kQueueEmpty:
      return make<c10::DistQueueEmptyError>(status);
    case Failure::kDesync:  // kInvalid too, where the group lives on
      return make<c10::DistBackendError>(status);
    default:
      break;
  }
  switch (status.code()) {
    case Code::kInvalid:
      return make<c10::ValueError>(status);
    case Code::kUnsupported:
      return make<c10::NotImplementedError>(status);
    case Code::kTimeout:
      return make<c10::DistBackendError>(with_torchs_words(status));
    default:
      return make<c10::DistBackendError>(status);
  }
}

void throw_torch(const Status& status) { std::rethrow_exception(torch_exception(status)); }

void throw_not_joined(const Status& status) {
  const bool network = status.code() == Code::kTimeout || status.code() == Code::kDisconnected ||
                       status.failure() == Failure::kVersionMismatch;
  if (network && status.failure() != Failure::kStoreLost)
    std::rethrow_exception(make<c10::DistNetworkError>(status));
  throw_torch(status);
}

}  // namespace lockstep::python
