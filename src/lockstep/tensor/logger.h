// The module under which this layer logs.
#pragma once

#include "lockstep/base/log.h"

namespace lockstep::tensor {

inline constexpr base::Logger kLog("tensor");

}  // namespace lockstep::tensor
