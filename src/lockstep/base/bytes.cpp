#include "lockstep/base/bytes.h"

#include <bit>

namespace lockstep::base {

static_assert(std::endian::native == std::endian::little,
              "the wire formats are little-endian, and so is every "
              "machine that libtorch supports");

std::string hex(ByteView bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const std::byte byte : bytes) {
    out += kDigits[std::to_integer<unsigned>(byte) >> 4];
    out += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return out;
}

}  // namespace lockstep::base
