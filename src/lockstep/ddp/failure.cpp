#include "lockstep/ddp/failure.h"

#include <c10/util/Exception.h>

#include <exception>

#include "lockstep/base/text.h"
#include "lockstep/ddp/reduction_error.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/groups.h"

namespace lockstep::ddp {

std::string text_of_exception() {
  try {
    throw;
  } catch (const std::exception& error) {
    if (const auto* const own = dynamic_cast<const tensor::ErrorFields*>(&error))
      return std::string(own->message());
    const auto* const torch = dynamic_cast<const c10::Error*>(&error);
    return torch != nullptr ? torch->what_without_backtrace() : error.what();
  } catch (...) {
    return "something that is no std::exception was thrown";
  }
}

void end_group(const tensor::ProcessGroup& group, const char* op, const std::string& why) {
  try {
    if (group.size() < 2 || !group.backend()->failure().ok()) return;
    group.backend()->abort(Status::aborted(why, {.failure = Failure::kRemoteError,
                                                 .peer = Rank{tensor::get_rank()},
                                                 .op = op,
                                                 .group = group.name()}));
  } catch (const std::exception&) {  // the world has ended before: there is nobody to tell
  }
}

void throw_reduction_error(const char* op, const std::string& what) {
  const Rank at{tensor::get_rank()};
  throw ReductionError(Status::aborted(cat("rank ", at, ": ", what), {.rank = at, .op = op}), at);
}

}  // namespace lockstep::ddp
