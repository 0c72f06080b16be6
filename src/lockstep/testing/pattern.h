// Bytes to send around in tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "lockstep/base/bytes.h"

namespace lockstep::testing {

// Bytes that differ from place to place and from seed to seed. Made eight at a time, as they are best
// compared as text: a sanitizer watches every access.
inline Buffer pattern(std::size_t size, std::uint64_t seed) {
  Buffer bytes(size);
  std::uint64_t state = seed;
  for (std::size_t at = 0; at < size; at += sizeof(state)) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const std::uint64_t mixed = state ^ (state >> 29);
    std::memcpy(bytes.data() + at, &mixed, std::min(sizeof(mixed), size - at));
  }
  return bytes;
}

}  // namespace lockstep::testing
