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
#include "lockstep/collective/reduction_test_support.h"
#include "lockstep/testing/sanitized.h"

namespace lockstep::collective {
namespace {

using ::testing::HasSubstr;

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

TEST(Reduction, AFactorOfAnotherRankIsNeverUndefined) {
  const std::uint64_t x = 3;
  Buffer source(sizeof(x));
  std::memcpy(source.data(), &x, sizeof(x));
  const auto scaled = [&](double factor) {
    const Fold how{.type = DType::kUint64, .op = ReduceOp::kPremulSum, .ranks = 1, .factors = {&factor, 1}};
    return element<std::uint64_t>(folded(how, {source}, 1), 0);
  };
  EXPECT_EQ(scaled(0x1p63), 0x8000000000000000U);
  EXPECT_EQ(scaled(-1), ~std::uint64_t{2});
  for (const double none : {0x1p64, -0x1p64, 1e300, static_cast<double>(NAN), static_cast<double>(INFINITY)})
    EXPECT_EQ(scaled(none), 0U) << none;
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
