// Copies of bytes that other ranks read next.
#pragma once

#include <cstddef>

#include "lockstep/base/bytes.h"

namespace lockstep::collective {

// Into a buffer whose lines other cores have read. From kStreamFrom on it writes past the cache: a plain
// store would first fetch each line back from the core that read it last, only to overwrite it. What was
// written is visible to whoever sees a later store of this thread.
constexpr std::size_t kStreamFrom = 2048;
void copy_for_peers(ByteSpan to, const std::byte* from);

}  // namespace lockstep::collective
