// A Posting is what a member of a Board says in a round, and the seal by which a reader can tell that nothing
// has changed it since.
//
// Thread safety: a value; one that lies in shared memory is copied before it is looked at.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace lockstep::transport::shm {

constexpr std::size_t kHeaderSize = 64;
using Header = std::array<std::byte, kHeaderSize>;

struct Posting {
  Header header{};
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::uint64_t payload = 0;  // with BoardOptions::payload: of the range
  std::uint64_t seal = 0;     // of all before it and the round
};

// Whether the bytes of a range are posted with a checksum, by which a reader can tell that they have changed.
enum class PayloadChecks : bool { kOff, kOn };

// Of all words before it. A product by an odd number takes no two words to the same, so no single word can
// change without changing the sum. All products at once, and no loop: it is made for every posting that is
// written or read.
inline std::uint64_t seal_of(const Posting& posting, std::uint32_t round) {
  constexpr std::size_t kWords = offsetof(Posting, seal) / sizeof(std::uint64_t);
  static_assert(sizeof(Posting) == (kWords + 1) * sizeof(std::uint64_t));
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15U;
  const auto word = [&posting](std::size_t i) {
    std::uint64_t value;
    std::memcpy(&value, reinterpret_cast<const std::byte*>(&posting) + i * sizeof(value), sizeof(value));
    return value;
  };
  const auto sum = [&word]<std::size_t... kAt>(std::index_sequence<kAt...>) {
    return (((word(kAt) + kAt) * (kOdd * (2 * kAt + 3))) + ...);
  };
  return (round + std::uint64_t{1}) * kOdd + sum(std::make_index_sequence<kWords>());
}

}  // namespace lockstep::transport::shm
