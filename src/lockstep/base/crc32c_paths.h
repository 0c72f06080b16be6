// The ways to compute CRC32C, each with the contract of crc32c(). For crc32c.cpp, and for the test that
// compares them.
#pragma once

#include <cstdint>

#include "lockstep/base/bytes.h"

namespace lockstep::base {

using Crc32cPath = std::uint32_t (*)(ByteView data, std::uint32_t crc);

// Runs on every machine.
std::uint32_t crc32c_by_table(ByteView data, std::uint32_t crc);
// By the processor's instruction; null where it has none.
Crc32cPath crc32c_by_instruction();

}  // namespace lockstep::base
