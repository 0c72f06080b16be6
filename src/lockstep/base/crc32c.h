// CRC32C (Castagnoli), by the processor's instruction where it has one.
#pragma once

#include <cstdint>

#include "lockstep/base/bytes.h"

namespace lockstep::base {

// `crc` is the checksum of what came before, 0 at the start: crc32c(b, crc32c(a)) == crc32c(a + b).
std::uint32_t crc32c(ByteView data, std::uint32_t crc = 0);

}  // namespace lockstep::base
