// The arithmetic of CRC32C that its two paths share, at compile time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace lockstep::base {

// table[k][b] is the checksum of byte b followed by k zero bytes, without the inversions at start and end.
using Crc32cTables = std::array<std::array<std::uint32_t, 256>, 8>;
constexpr Crc32cTables make_crc32c_tables() {
  constexpr std::uint32_t kPolynomial = 0x82f63b78;  // Castagnoli, bits reversed
  Crc32cTables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t zeros = 1; zeros < tables.size(); ++zeros) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t crc = tables[zeros - 1][byte];
      tables[zeros][byte] = crc >> 8 ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}
inline constexpr Crc32cTables kCrc32cTables = make_crc32c_tables();

// What a run of zero bytes does to a checksum. It is a linear map, made by squaring (the map of 2n bytes is
// that of n bytes applied twice) and kept as one table for each byte of the checksum.
class Crc32cZeroRun {
 public:
  constexpr explicit Crc32cZeroRun(std::size_t zero_bytes) {
    Matrix run = {};
    Matrix power = {};  // the map of 1, 2, 4, ... zero bytes
    for (std::size_t i = 0; i < 32; ++i) {
      run[i] = std::uint32_t{1} << i;
      power[i] = run[i] >> 8 ^ kCrc32cTables[0][run[i] & 0xff];
    }
    for (std::size_t left = zero_bytes; left != 0; left >>= 1) {
      if ((left & 1) != 0) run = product(power, run);
      power = product(power, power);
    }
    for (std::size_t part = 0; part < tables_.size(); ++part) {
      for (std::uint32_t byte = 0; byte < 256; ++byte) tables_[part][byte] = image(run, byte << (8 * part));
    }
  }
  constexpr std::uint32_t after(std::uint32_t crc) const {
    return tables_[0][crc & 0xff] ^ tables_[1][crc >> 8 & 0xff] ^ tables_[2][crc >> 16 & 0xff] ^
           tables_[3][crc >> 24];
  }

 private:
  using Matrix = std::array<std::uint32_t, 32>;  // column i is what becomes of bit i

  static constexpr std::uint32_t image(const Matrix& matrix, std::uint32_t bits) {
    std::uint32_t out = 0;
    for (std::size_t i = 0; bits != 0; ++i, bits >>= 1) out ^= (bits & 1) != 0 ? matrix[i] : 0;
    return out;
  }
  static constexpr Matrix product(const Matrix& second, const Matrix& first) {
    Matrix out{};
    for (std::size_t i = 0; i < 32; ++i) out[i] = image(second, first[i]);
    return out;
  }

  std::array<std::array<std::uint32_t, 256>, 4> tables_{};
};

}  // namespace lockstep::base
