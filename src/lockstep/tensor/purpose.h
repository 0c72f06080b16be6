// The same calls as in collectives.h, for layers above that could mix up operations which are alike.
//
// Two models of one shape have gradients of one shape: ranks that reach them in different orders would add up
// those of one with those of the other. A purpose is a number that says what an operation is for. It is
// compared as all that ranks say of an operation, and ranks whose purposes differ get Desync. 0 is none.
// Internal. Thread safety, ownership and errors: as collectives.h.
#pragma once

#include <cstdint>

#include "lockstep/tensor/collectives.h"

namespace lockstep::tensor {

WorkHandle broadcast_for(std::uint64_t purpose, const at::Tensor& tensor, const FromRootOptions& options);
WorkHandle all_reduce_for(std::uint64_t purpose, const at::Tensor& tensor, const ReduceOptions& options);

}  // namespace lockstep::tensor
