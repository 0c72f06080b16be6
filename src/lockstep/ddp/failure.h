// How a rank's failure in training ends its group, so that the others need not wait for it. Internal.
#pragma once

#include <string>

#include "lockstep/tensor/process_group.h"

namespace lockstep::ddp {

// What is being caught, without the stack that torch's errors carry, and without who reports it.
std::string text_of_exception();

// The other ranks, if there are any, get RemoteError with `why`, in the operation `op` ("backward"), unless
// the group has failed before. Does not throw, also where the world has ended.
void end_group(const tensor::ProcessGroup& group, const char* op, const std::string& why);

// ReductionError in the operation `op`, with this rank before `what`.
[[noreturn]] void throw_reduction_error(const char* op, const std::string& what);

}  // namespace lockstep::ddp
