// The modules under which this layer logs.
#pragma once

#include "lockstep/base/log.h"

namespace lockstep::store {

inline constexpr base::Logger kLog("store");
inline constexpr base::Logger kRendezvousLog("rendezvous");

}  // namespace lockstep::store
