#include "tools/bench/pattern.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "lockstep/base/check.h"

namespace lockstep::bench {
namespace {

constexpr std::uint64_t kPerRank = 17;
constexpr std::uint64_t kPerBlock = 29;
constexpr std::uint64_t kPerIteration = 7;
constexpr std::uint64_t kLongestPeriod = 113;

// The largest whole number up to which the type has all of them.
std::uint64_t exact_up_to(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
      return 127;
    case DType::kUint8:
      return 255;
    case DType::kBFloat16:
      return 256;
    case DType::kFloat16:
      return 2048;
    default:
      return 1U << 24U;
  }
}

std::uint64_t period_of(DType dtype, WorldSize size) {
  const std::uint64_t largest = exact_up_to(dtype) / static_cast<std::uint64_t>(size.value);
  return std::clamp<std::uint64_t>(largest + 1, 2, kLongestPeriod);
}

template <typename T>
void store(T value, std::byte* out) {
  std::memcpy(out, &value, sizeof(T));
}

// A whole number from 0 to 2048 as IEEE 754 binary16.
std::uint16_t half_of(unsigned value) {
  if (value == 0) return 0;
  const auto exponent = static_cast<unsigned>(std::bit_width(value)) - 1;
  const unsigned mantissa = (exponent <= 10 ? value << (10 - exponent) : value >> (exponent - 10)) & 0x3ffU;
  return static_cast<std::uint16_t>(((exponent + 15) << 10U) | mantissa);
}

}  // namespace

void store_number(DType dtype, int value, std::byte* out) {
  switch (dtype) {
    case DType::kUint8:
    case DType::kInt8:
      return store(static_cast<std::uint8_t>(value), out);
    case DType::kInt32:
      return store(static_cast<std::int32_t>(value), out);
    case DType::kInt64:
      return store(static_cast<std::int64_t>(value), out);
    case DType::kFloat16:
      return store(half_of(static_cast<unsigned>(value)), out);
    case DType::kBFloat16:
      return store(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16U),
                   out);
    case DType::kFloat32:
      return store(static_cast<float>(value), out);
    case DType::kFloat64:
      return store(static_cast<double>(value), out);
    default:
      LOCKSTEP_CHECK(false, "a type that is not in kBenchTypes");
  }
}

Pattern::Pattern(DType dtype, WorldSize size, std::size_t block)
    : size_(size),
      element_(collective::size_of(dtype)),
      block_(block),
      period_(period_of(dtype, size)),
      given_((block + period_) * element_),
      summed_(given_.size()) {
  for (std::size_t i = 0; i < period_; ++i) {
    std::uint64_t sum = 0;
    for (int rank = 0; rank < size.value; ++rank) {
      sum += (i + kPerRank * static_cast<std::uint64_t>(rank)) % period_;
    }
    store_number(dtype, static_cast<int>(i), &given_[i * element_]);
    store_number(dtype, static_cast<int>(sum), &summed_[i * element_]);
  }
  // The rest repeats.
  for (Buffer* table : {&given_, &summed_}) {
    for (std::size_t filled = period_ * element_; filled < table->size();) {
      const std::size_t more = std::min(filled, table->size() - filled);
      std::memcpy(table->data() + filled, table->data(), more);
      filled += more;
    }
  }
}

ByteView Pattern::window(const Buffer& table, std::uint64_t from) const {
  return ByteView(table).subspan(static_cast<std::size_t>(from % period_) * element_, block_ * element_);
}

ByteView Pattern::given(const Origin& origin) const {
  return window(given_, kPerRank * static_cast<std::uint64_t>(origin.rank.value) +
                            kPerBlock * static_cast<std::uint64_t>(origin.block) +
                            kPerIteration * origin.iteration);
}

ByteView Pattern::summed(const Origin& origin) const {
  return window(summed_,
                kPerBlock * static_cast<std::uint64_t>(origin.block) + kPerIteration * origin.iteration);
}

std::optional<ByteView> Pattern::expected(CollectiveOp op, const Receiver& receiver,
                                          std::uint64_t iteration) const {
  const Rank rank = receiver.rank;
  switch (op) {
    case CollectiveOp::kReduce:
      if (rank != kBenchRoot) return std::nullopt;
      [[fallthrough]];
    case CollectiveOp::kAllReduce:
      return summed({.iteration = iteration});
    case CollectiveOp::kReduceScatter:
      return summed({.block = rank.value, .iteration = iteration});
    case CollectiveOp::kBroadcast:
      return given({.rank = kBenchRoot, .iteration = iteration});
    case CollectiveOp::kScatter:
      return given({.rank = kBenchRoot, .block = rank.value, .iteration = iteration});
    case CollectiveOp::kAllGather:
    case CollectiveOp::kGather:
      return given({.rank = Rank{receiver.block}, .iteration = iteration});
    case CollectiveOp::kAllToAll:
      return given({.rank = Rank{receiver.block}, .block = rank.value, .iteration = iteration});
    case CollectiveOp::kSendRecv:
      if (const auto partner = partner_of(rank, size_))
        return given({.rank = *partner, .iteration = iteration});
      break;
    case CollectiveOp::kBarrier:
      break;
  }
  return std::nullopt;
}

}  // namespace lockstep::bench
