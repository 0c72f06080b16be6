// The module under which this layer logs.
#pragma once

#include "lockstep/base/log.h"

namespace lockstep::backend {

inline constexpr base::Logger kLog("backend");

}  // namespace lockstep::backend
