#include "lockstep/collective/reduction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "lockstep/base/bytes.h"
#include "lockstep/base/text.h"
#include "lockstep/testing/sanitized.h"

namespace lockstep::collective {
namespace {

using ::testing::HasSubstr;

// ---- A plain reference: one element at a time, with conversions written another way ----

float widen(DType type, std::uint16_t bits) {
  if (type == DType::kBFloat16) return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const float sign = (bits & 0x8000) != 0 ? -1.F : 1.F;
  if (exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

// Rounds to a multiple of the last place that the narrow type has at this magnitude.
std::uint16_t narrow(DType type, float value) {
  const int digits = type == DType::kFloat16 ? 11 : 8;
  const int lowest = type == DType::kFloat16 ? -24 : -133;
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const int infinity = type == DType::kFloat16 ? 0x7c00 : 0x7f80;
  if (std::isnan(value)) return static_cast<std::uint16_t>(infinity | 1);
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  if (value == 0) return static_cast<std::uint16_t>(sign);
  int exponent = 0;
  (void)std::frexp(std::abs(static_cast<double>(value)), &exponent);
  const int place = std::max(exponent - digits, lowest);
  const auto units =
      static_cast<std::int64_t>(std::nearbyint(std::ldexp(std::abs(static_cast<double>(value)), -place)));
  // Units of the last place count on from the bits of the subnormals, also over the edge of a binade.
  const std::int64_t bits = units + (static_cast<std::int64_t>(place - lowest) << (digits - 1));
  return static_cast<std::uint16_t>(sign | std::min<std::int64_t>(bits, infinity));
}

template <typename T>
T combine(ReduceOp op, T acc, T x) {
  if constexpr (std::is_floating_point_v<T>) {
    if (op == ReduceOp::kProduct) return acc * x;
    if (op == ReduceOp::kMin) return std::isnan(acc) ? acc : (std::isnan(x) || x < acc ? x : acc);
    if (op == ReduceOp::kMax) return std::isnan(acc) ? acc : (std::isnan(x) || x > acc ? x : acc);
    return acc + x;
  } else {
    using U = std::uint64_t;
    switch (op) {
      case ReduceOp::kProduct:
        return static_cast<T>(static_cast<U>(acc) * static_cast<U>(x));
      case ReduceOp::kMin:
        return std::min(acc, x);
      case ReduceOp::kMax:
        return std::max(acc, x);
      case ReduceOp::kBand:
        return static_cast<T>(acc & x);
      case ReduceOp::kBor:
        return static_cast<T>(acc | x);
      case ReduceOp::kBxor:
        return static_cast<T>(acc ^ x);
      default:
        return static_cast<T>(static_cast<U>(acc) + static_cast<U>(x));
    }
  }
}

using Sources = std::vector<Buffer>;

template <typename T>
T element(const Buffer& data, std::size_t i) {
  T value{};
  std::memcpy(&value, data.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void put(Buffer& data, std::size_t i, T value) {
  std::memcpy(data.data() + i * sizeof(T), &value, sizeof(T));
}

template <typename T>
void reference_plain(const Fold& how, const Sources& sources, Buffer& out, std::size_t count) {
  const auto scaled = [&](std::size_t s, std::size_t i) {
    const T x = element<T>(sources[s], i);
    if (how.op != ReduceOp::kPremulSum) return x;
    if constexpr (std::is_floating_point_v<T>) return x * static_cast<T>(how.factors[s]);
    return combine(ReduceOp::kProduct, x, static_cast<T>(static_cast<std::int64_t>(how.factors[s])));
  };
  for (std::size_t i = 0; i < count; ++i) {
    T acc = scaled(0, i);
    for (std::size_t s = 1; s < sources.size(); ++s) acc = combine(how.op, acc, scaled(s, i));
    if (how.op == ReduceOp::kAvg) acc = static_cast<T>(acc / static_cast<T>(how.ranks));
    put(out, i, acc);
  }
}

void reference_16(const Fold& how, const Sources& sources, Buffer& out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto scaled = [&](std::size_t s) {
      const float x = widen(how.type, element<std::uint16_t>(sources[s], i));
      return how.op == ReduceOp::kPremulSum ? x * static_cast<float>(how.factors[s]) : x;
    };
    float acc = scaled(0);
    for (std::size_t s = 1; s < sources.size(); ++s) acc = combine(how.op, acc, scaled(s));
    if (how.op == ReduceOp::kAvg) acc /= static_cast<float>(how.ranks);
    put(out, i, narrow(how.type, acc));
  }
}

template <typename T>
void reference_complex(const Fold& how, const Sources& sources, Buffer& out, std::size_t count) {
  if (how.op != ReduceOp::kProduct) return reference_plain<T>(how, sources, out, count * 2);
  for (std::size_t i = 0; i < count; ++i) {
    T re = element<T>(sources[0], 2 * i);
    T im = element<T>(sources[0], 2 * i + 1);
    for (std::size_t s = 1; s < sources.size(); ++s) {
      const T x = element<T>(sources[s], 2 * i);
      const T y = element<T>(sources[s], 2 * i + 1);
      const T next = re * x - im * y;
      im = re * y + im * x;
      re = next;
    }
    put(out, 2 * i, re);
    put(out, 2 * i + 1, im);
  }
}

Buffer reference(const Fold& how, const Sources& sources, std::size_t count) {
  Buffer out(count * size_of(how.type));
  Fold boolean = how;
  switch (how.type) {
    case DType::kBool:
      if (how.op == ReduceOp::kSum || how.op == ReduceOp::kMax) boolean.op = ReduceOp::kBor;
      if (how.op == ReduceOp::kProduct || how.op == ReduceOp::kMin) boolean.op = ReduceOp::kBand;
      reference_plain<std::uint8_t>(boolean, sources, out, count);
      break;
    case DType::kUint8:
      reference_plain<std::uint8_t>(how, sources, out, count);
      break;
    case DType::kInt8:
      reference_plain<std::int8_t>(how, sources, out, count);
      break;
    case DType::kInt16:
      reference_plain<std::int16_t>(how, sources, out, count);
      break;
    case DType::kInt32:
      reference_plain<std::int32_t>(how, sources, out, count);
      break;
    case DType::kInt64:
      reference_plain<std::int64_t>(how, sources, out, count);
      break;
    case DType::kUint16:
      reference_plain<std::uint16_t>(how, sources, out, count);
      break;
    case DType::kUint32:
      reference_plain<std::uint32_t>(how, sources, out, count);
      break;
    case DType::kUint64:
      reference_plain<std::uint64_t>(how, sources, out, count);
      break;
    case DType::kFloat16:
    case DType::kBFloat16:
      reference_16(how, sources, out, count);
      break;
    case DType::kFloat32:
      reference_plain<float>(how, sources, out, count);
      break;
    case DType::kFloat64:
      reference_plain<double>(how, sources, out, count);
      break;
    case DType::kComplex64:
      reference_complex<float>(how, sources, out, count);
      break;
    case DType::kComplex128:
      reference_complex<double>(how, sources, out, count);
      break;
    case DType::kFloat8:
      break;
  }
  return out;
}

// ---- Data, and a comparison in which every NaN is the same ----

bool is_real(DType type) { return type >= DType::kFloat16 && type <= DType::kComplex128; }

std::size_t real_size(DType type) {
  if (type == DType::kComplex64) return 4;
  if (type == DType::kComplex128) return 8;
  return size_of(type);
}

Buffer random_data(DType type, std::size_t count, std::mt19937_64& random) {
  Buffer data(count * size_of(type));
  const float kSpecial[] = {0.F,     -0.F,  INFINITY, -INFINITY, NAN,   1e-40F,
                            -1e-41F, 6e-8F, 65504.F,  1e38F,     -1e38F};
  const std::size_t step = real_size(type);
  for (std::size_t i = 0; i < data.size() / step; ++i) {
    const bool special = random() % 16 == 0;
    const double value = special ? static_cast<double>(kSpecial[random() % std::size(kSpecial)])
                                 : std::ldexp(static_cast<double>(random() % 2000) - 1000,
                                              static_cast<int>(random() % 20) - 10);
    if (type == DType::kBool) {
      put(data, i, static_cast<std::uint8_t>(random() % 2));
    } else if (!is_real(type)) {
      const std::uint64_t raw = random();
      std::memcpy(data.data() + i * step, &raw, step);
    } else if (step == 2) {
      put(data, i, narrow(type, static_cast<float>(value)));
    } else if (step == 4) {
      put(data, i, static_cast<float>(value));
    } else {
      put(data, i, special ? value : value * 1.0000000001);
    }
  }
  return data;
}

// A NaN's payload is nobody's promise: all become one.
Buffer with_one_nan(DType type, Buffer data) {
  if (!is_real(type)) return data;
  const std::size_t step = real_size(type);
  for (std::size_t i = 0; i < data.size() / step; ++i) {
    if (step == 2 && std::isnan(widen(type, element<std::uint16_t>(data, i))))
      put<std::uint16_t>(data, i, 0x7fff);
    if (step == 4 && std::isnan(element<float>(data, i))) put(data, i, std::bit_cast<float>(0x7fc00000U));
    if (step == 8 && std::isnan(element<double>(data, i)))
      put(data, i, std::bit_cast<double>(0x7ff8000000000000ULL));
  }
  return data;
}

Buffer folded(const Fold& how, const Sources& sources, std::size_t count) {
  std::vector<const std::byte*> from;
  for (const Buffer& source : sources) from.push_back(source.data());
  const std::size_t size = how.result == Fold::Form::kCarry ? carry_size(how.type) : size_of(how.type);
  Buffer out(count * size);
  std::byte* to = out.data();
  fold(how, from, {&to, 1}, count);
  return out;
}

template <typename Body>
void for_every_type_and_op(Body body) {
  for (int t = 0; t < kDTypes; ++t) {
    for (int o = 0; o < kReduceOps; ++o) {
      const auto type = static_cast<DType>(t);
      const auto op = static_cast<ReduceOp>(o);
      if (!check_reducible(type, op).ok()) continue;
      SCOPED_TRACE(cat(name_of(op), " on ", name_of(type)));
      body(type, op);
    }
  }
}

// Runs `body` once with each instruction set that this machine has.
template <typename Body>
void on_every_target(Body body) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
}

constexpr double kFactors[] = {1, -2, 3, 2, 5, -1, 2, 4, 3};

// The first element that differs, in words; empty if none does.
std::string difference(DType type, const Buffer& got, const Buffer& expected) {
  const std::size_t step = real_size(type);
  for (std::size_t i = 0; i < expected.size(); i += step) {
    const ByteView a = ByteView(got).subspan(i, step);
    const ByteView b = ByteView(expected).subspan(i, step);
    if (!std::equal(a.begin(), a.end(), b.begin())) {
      return cat("number ", i / step, " is ", base::hex(a), ", expected ", base::hex(b));
    }
  }
  return {};
}

constexpr std::size_t kAllRankCounts[] = {1, 3, 8, 2, 5, 9};
constexpr std::span<const std::size_t> kRankCounts(kAllRankCounts, lockstep::testing::kSanitized
                                                                       ? 3
                                                                       : std::size(kAllRankCounts));
constexpr std::size_t kAllSizes[] = {0, 1, 33, 300, 3, 7, 16, 64, 131, 1009};
constexpr std::span<const std::size_t> kSizes(kAllSizes,
                                              lockstep::testing::kSanitized ? 4 : std::size(kAllSizes));

TEST(Reduction, EveryTypeAndOpIsALeftFoldBitForBit) {
  std::mt19937_64 random(7);
  on_every_target([&] {
    for_every_type_and_op([&](DType type, ReduceOp op) {
      for (const std::size_t ranks : kRankCounts) {
        for (const std::size_t count : kSizes) {
          Sources sources;
          for (std::size_t s = 0; s < ranks; ++s) sources.push_back(random_data(type, count, random));
          const Fold how{
              .type = type, .op = op, .ranks = static_cast<int>(ranks), .factors = {kFactors, ranks}};
          ASSERT_EQ(difference(type, with_one_nan(type, folded(how, sources, count)),
                               with_one_nan(type, reference(how, sources, count))),
                    "")
              << ranks << " ranks, " << count << " elements";
        }
      }
    });
  });
}

TEST(Reduction, ACarryContinuesTheFoldWhereItStopped) {
  std::mt19937_64 random(11);
  on_every_target([&] {
    for_every_type_and_op([&](DType type, ReduceOp op) {
      constexpr std::size_t kRanks = 6;
      constexpr std::size_t kCount = 101;
      Sources sources;
      for (std::size_t s = 0; s < kRanks; ++s) sources.push_back(random_data(type, kCount, random));
      const Fold whole{.type = type, .op = op, .ranks = kRanks, .factors = {kFactors, kRanks}};
      for (std::size_t cut = 1; cut < kRanks; ++cut) {
        Fold first = whole;
        first.factors = {kFactors, cut};
        first.result = Fold::Form::kCarry;
        Sources rest = {
            folded(first, {sources.begin(), sources.begin() + static_cast<std::ptrdiff_t>(cut)}, kCount)};
        rest.insert(rest.end(), sources.begin() + static_cast<std::ptrdiff_t>(cut), sources.end());
        Fold second = whole;
        std::vector<double> factors = {0};  // the carry's, unused
        factors.insert(factors.end(), kFactors + cut, kFactors + kRanks);
        second.factors = factors;
        second.first = Fold::Form::kCarry;
        ASSERT_EQ(difference(type, with_one_nan(type, folded(second, rest, kCount)),
                             with_one_nan(type, folded(whole, sources, kCount))),
                  "")
            << "cut after " << cut;
      }
    });
  });
}

TEST(Reduction, WritesEveryDestinationAlsoInPlaceAndUnaligned) {
  std::mt19937_64 random(3);
  for (std::size_t offset = 0; offset < 4; ++offset) {
    constexpr std::size_t kCount = 517;
    std::vector<Buffer> storage;
    for (int s = 0; s < 3; ++s) storage.push_back(random_data(DType::kInt32, kCount + 8, random));
    std::vector<const std::byte*> sources;
    std::vector<std::byte*> destinations;
    Sources copies;
    for (Buffer& buffer : storage) {
      sources.push_back(buffer.data() + offset);
      destinations.push_back(buffer.data() + offset);
      copies.emplace_back(buffer.begin() + static_cast<std::ptrdiff_t>(offset), buffer.end());
    }
    const Fold how{.type = DType::kInt32, .op = ReduceOp::kSum};
    const Buffer expected = reference(how, copies, kCount);
    fold(how, sources, destinations, kCount);
    for (std::byte* destination : destinations) {
      EXPECT_EQ(std::memcmp(destination, expected.data(), expected.size()), 0) << "offset " << offset;
    }
  }
}

TEST(Reduction, EverySixteenBitPatternSurvivesAFoldOfOne) {
  on_every_target([] {
    for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
      std::vector<std::uint16_t> all(65536);
      std::iota(all.begin(), all.end(), std::uint16_t{0});
      const ByteView view = bytes_of(std::as_const(all));
      const Buffer input(view.begin(), view.end());
      EXPECT_EQ(with_one_nan(type, folded({.type = type}, {input}, all.size())), with_one_nan(type, input))
          << name_of(type);
    }
  });
}

#if defined(__x86_64__)
TEST(Reduction, TheCallersFloatModeChangesNothingAndComesBack) {
  std::mt19937_64 random(5);
  const Sources sources = {random_data(DType::kFloat32, 1000, random),
                           random_data(DType::kFloat32, 1000, random)};
  const Fold how{.type = DType::kFloat32, .op = ReduceOp::kAvg, .ranks = 2};
  const Buffer expected = with_one_nan(DType::kFloat32, reference(how, sources, 1000));
  const unsigned saved = _mm_getcsr();
  for (const unsigned mode :
       {0x8000U, 0x0040U, 0x6000U, 0xe040U}) {  // flush, denormals are zero, towards zero
    _mm_setcsr((saved & ~0xe07fU) | mode);
    const Buffer got = folded(how, sources, 1000);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(saved);
    EXPECT_EQ(with_one_nan(DType::kFloat32, got), expected) << mode;
    EXPECT_EQ(after & 0xe040U, mode);
  }
}
#endif

TEST(Reduction, AnOpThatATypeDoesNotHaveIsRefusedInWords) {
  const Status status = check_reducible(DType::kFloat32, ReduceOp::kBand);
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("band is not defined on float32; it has sum, avg, product, min, max, premul_sum"));
  EXPECT_FALSE(check_reducible(DType::kComplex64, ReduceOp::kMax).ok());
  EXPECT_FALSE(check_reducible(DType::kBool, ReduceOp::kAvg).ok());
  EXPECT_THAT(std::string(check_reducible(DType::kFloat8, ReduceOp::kSum).message()),
              HasSubstr("moved but not reduced"));
}

}  // namespace
}  // namespace lockstep::collective
