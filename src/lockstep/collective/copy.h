// Copies of bytes that other ranks read next.
#pragma once

#include <cstddef>

#include "lockstep/base/bytes.h"
#include "lockstep/collective/tuning.h"

namespace lockstep::collective {

// What was written is visible to whoever sees a later store of this thread.
void copy_for_peers(ByteSpan to, const std::byte* from, CopyWay way);

}  // namespace lockstep::collective
