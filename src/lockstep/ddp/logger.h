// The module under which this layer logs.
#pragma once

#include "lockstep/base/log.h"

namespace lockstep::ddp {

inline constexpr base::Logger kLog("ddp");

}  // namespace lockstep::ddp
