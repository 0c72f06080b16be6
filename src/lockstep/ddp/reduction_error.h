// A ReductionError is a backward pass that cannot end as it should on this rank: a parameter that never got
// its gradient, or got it twice. It names the parameters. The group is dead, and the other ranks get
// RemoteError with its text.
#pragma once

#include "lockstep/tensor/errors.h"

namespace lockstep::ddp {

class ReductionError : public tensor::DistBackendError {
  using tensor::DistBackendError::DistBackendError;
};

}  // namespace lockstep::ddp

namespace lockstep {
using ddp::ReductionError;
}
