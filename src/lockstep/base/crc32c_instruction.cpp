#include <cstring>

#include "lockstep/base/crc32c_paths.h"
#include "lockstep/base/crc32c_tables.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace lockstep::base {
namespace {

// One instruction, as assembly: an intrinsic would need the whole file to be compiled for processors that
// have it.
#if defined(__x86_64__)
struct Instruction {
  static bool exists() { return __builtin_cpu_supports("sse4.2") != 0; }
  static std::uint32_t word(std::uint32_t crc, std::uint64_t data) {
    std::uint64_t wide = crc;
    asm("crc32q %1, %0" : "+r"(wide) : "rm"(data));
    return static_cast<std::uint32_t>(wide);
  }
  static std::uint32_t byte(std::uint32_t crc, std::uint8_t data) {
    asm("crc32b %1, %0" : "+r"(crc) : "rm"(data));
    return crc;
  }
};
#elif defined(__aarch64__)
struct Instruction {
  static bool exists() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
  static std::uint32_t word(std::uint32_t crc, std::uint64_t data) {
    asm(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(data));
    return crc;
  }
  static std::uint32_t byte(std::uint32_t crc, std::uint8_t data) {
    asm(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"(data));
    return crc;
  }
};
#else
struct Instruction {
  static bool exists() { return false; }
  static std::uint32_t word(std::uint32_t crc, std::uint64_t) { return crc; }
  static std::uint32_t byte(std::uint32_t crc, std::uint8_t) { return crc; }
};
#endif

std::uint64_t load_word(const std::byte* bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

// The instruction takes three cycles and one can start in each, so three lanes run side by side. The data is
// taken in triples of blocks; a lane's checksum moves past the next block as if that were zeros, and is
// joined.
constexpr std::size_t kLongBlock = 4096;
constexpr std::size_t kShortBlock = 256;
constexpr Crc32cZeroRun kLongRun(kLongBlock);
constexpr Crc32cZeroRun kShortRun(kShortBlock);

template <std::size_t kBlock>
std::uint32_t by_triples(const std::byte*& at, std::size_t& left, std::uint32_t crc,
                         const Crc32cZeroRun& run) {
  for (; left >= 3 * kBlock; left -= 3 * kBlock, at += 3 * kBlock) {
    std::uint32_t second = 0;
    std::uint32_t third = 0;
    for (std::size_t i = 0; i < kBlock; i += 8) {
      crc = Instruction::word(crc, load_word(at + i));
      second = Instruction::word(second, load_word(at + kBlock + i));
      third = Instruction::word(third, load_word(at + 2 * kBlock + i));
    }
    crc = run.after(run.after(crc) ^ second) ^ third;
  }
  return crc;
}

std::uint32_t by_instruction(ByteView data, std::uint32_t crc) {
  const std::byte* at = data.data();
  std::size_t left = data.size();
  crc = by_triples<kLongBlock>(at, left, ~crc, kLongRun);
  crc = by_triples<kShortBlock>(at, left, crc, kShortRun);
  for (; left >= 8; left -= 8, at += 8) crc = Instruction::word(crc, load_word(at));
  for (; left > 0; --left, ++at) crc = Instruction::byte(crc, std::to_integer<std::uint8_t>(*at));
  return ~crc;
}

}  // namespace

Crc32cPath crc32c_by_instruction() { return Instruction::exists() ? &by_instruction : nullptr; }

}  // namespace lockstep::base
