#include "tools/bench/pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace lockstep::bench {
namespace {

template <typename T>
std::vector<T> values(ByteView bytes) {
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

TEST(Pattern, SumsWhatTheRanksGive) {
  const WorldSize size{5};
  const Pattern pattern(DType::kFloat32, size, 300);
  for (const std::uint64_t iteration : {0, 1, 112, 113, 1000}) {
    std::vector<float> sum(300, 0);
    for (int rank = 0; rank < size.value; ++rank) {
      const auto given =
          values<float>(pattern.given({.rank = Rank{rank}, .block = 2, .iteration = iteration}));
      std::transform(sum.begin(), sum.end(), given.begin(), sum.begin(), std::plus<>());
    }
    EXPECT_EQ(values<float>(pattern.summed({.block = 2, .iteration = iteration})), sum) << iteration;
  }
}

TEST(Pattern, TellsRanksBlocksAndIterationsApart) {
  const Pattern pattern(DType::kInt32, WorldSize{4}, 64);
  const auto of = [&pattern](const Origin& origin) { return values<int>(pattern.given(origin)); };
  EXPECT_NE(of({}), of({.rank = Rank{1}}));
  EXPECT_NE(of({}), of({.block = 1}));
  EXPECT_NE(of({}), of({.iteration = 1}));
}

TEST(Pattern, SumsStayExactInNarrowTypes) {
  const Pattern pattern(DType::kUint8, WorldSize{64}, 1000);
  std::vector<int> sum(1000, 0);
  for (int rank = 0; rank < 64; ++rank) {
    const auto given = values<std::uint8_t>(pattern.given({.rank = Rank{rank}}));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += given[i];
  }
  EXPECT_THAT(sum, ::testing::Each(::testing::Le(255)));
}

TEST(Pattern, KnowsWhatEachOperationLeaves) {
  const Pattern pattern(DType::kInt64, WorldSize{3}, 10);
  const auto expected = [&pattern](CollectiveOp op, int rank, int block) {
    return values<std::int64_t>(*pattern.expected(op, {.rank = Rank{rank}, .block = block}, 4));
  };
  const auto given = [&pattern](int rank, int block) {
    return values<std::int64_t>(pattern.given({.rank = Rank{rank}, .block = block, .iteration = 4}));
  };
  const auto summed = [&pattern](int block) {
    return values<std::int64_t>(pattern.summed({.block = block, .iteration = 4}));
  };
  EXPECT_EQ(expected(CollectiveOp::kAllReduce, 2, 0), summed(0));
  EXPECT_EQ(expected(CollectiveOp::kReduce, 0, 0), summed(0));
  EXPECT_EQ(pattern.expected(CollectiveOp::kReduce, {.rank = Rank{1}}, 4), std::nullopt);
  EXPECT_EQ(expected(CollectiveOp::kReduceScatter, 2, 0), summed(2));
  EXPECT_EQ(expected(CollectiveOp::kBroadcast, 2, 0), given(0, 0));
  EXPECT_EQ(expected(CollectiveOp::kScatter, 2, 0), given(0, 2));
  EXPECT_EQ(expected(CollectiveOp::kAllGather, 2, 1), given(1, 0));
  EXPECT_EQ(expected(CollectiveOp::kGather, 0, 1), given(1, 0));
  EXPECT_EQ(expected(CollectiveOp::kAllToAll, 2, 1), given(1, 2));
  EXPECT_EQ(expected(CollectiveOp::kSendRecv, 0, 0), given(1, 0));
  EXPECT_EQ(pattern.expected(CollectiveOp::kSendRecv, {.rank = Rank{2}}, 4), std::nullopt);
}

TEST(Pattern, StoresNumbersAsTheirTypeWritesThem) {
  const auto bits = [](DType dtype, int value) {
    std::uint16_t out = 0;
    store_number(dtype, value, reinterpret_cast<std::byte*>(&out));
    return out;
  };
  EXPECT_EQ(bits(DType::kFloat16, 0), 0x0000);
  EXPECT_EQ(bits(DType::kFloat16, 1), 0x3c00);
  EXPECT_EQ(bits(DType::kFloat16, 3), 0x4200);
  EXPECT_EQ(bits(DType::kFloat16, 2047), 0x67ff);
  EXPECT_EQ(bits(DType::kFloat16, 2048), 0x6800);
  EXPECT_EQ(bits(DType::kBFloat16, 1), 0x3f80);
  EXPECT_EQ(bits(DType::kBFloat16, 255), 0x437f);
}

}  // namespace
}  // namespace lockstep::bench
