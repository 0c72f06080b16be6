#include "lockstep/base/crc32c.h"

#include <cstring>

#include "lockstep/base/crc32c_paths.h"
#include "lockstep/base/crc32c_tables.h"

namespace lockstep::base {

std::uint32_t crc32c_by_table(ByteView data, std::uint32_t crc) {
  const std::byte* at = data.data();
  std::size_t left = data.size();
  crc = ~crc;
  for (; left >= 8; left -= 8, at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, sizeof(word));
    word ^= crc;
    crc = 0;
    for (std::size_t i = 0; i < 8; ++i) crc ^= kCrc32cTables[7 - i][word >> (8 * i) & 0xff];
  }
  for (; left > 0; --left, ++at)
    crc = crc >> 8 ^ kCrc32cTables[0][(crc ^ std::to_integer<std::uint32_t>(*at)) & 0xff];
  return ~crc;
}

std::uint32_t crc32c(ByteView data, std::uint32_t crc) {
  static const Crc32cPath kPath =
      crc32c_by_instruction() != nullptr ? crc32c_by_instruction() : &crc32c_by_table;
  return kPath(data, crc);
}

}  // namespace lockstep::base
