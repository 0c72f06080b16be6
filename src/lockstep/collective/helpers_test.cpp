#include "lockstep/collective/helpers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "lockstep/collective/copy.h"
#include "lockstep/collective/helpers_test_support.h"

namespace lockstep::collective {
namespace {

std::vector<float> floats_of(int seed, std::size_t count) {
  std::vector<float> floats(count);
  for (std::size_t i = 0; i < count; ++i)
    floats[i] =
        std::ldexp(1.F + static_cast<float>((i * 7919 + static_cast<std::size_t>(seed)) % 1009) / 1009.F,
                   static_cast<int>(i % 30) - seed);
  return floats;
}

TEST(Helpers, FoldTheSameBitsTogether) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{100'003}, std::size_t{400'000}}) {
    const std::vector<std::vector<float>> inputs{floats_of(1, count), floats_of(2, count),
                                                 floats_of(3, count)};
    std::vector<const std::byte*> sources;
    sources.reserve(inputs.size());
    for (const auto& input : inputs) sources.push_back(bytes_of(input).data());
    const Fold how{.type = DType::kFloat32, .op = ReduceOp::kAvg, .ranks = 3};
    std::vector<float> alone(count);
    std::byte* const to = bytes_of(alone).data();
    fold(how, sources, {&to, 1}, count);
    Crowd crowd(4);
    std::vector<std::vector<float>> together(2, std::vector<float>(count));
    std::byte* const destinations[] = {bytes_of(together[0]).data(), bytes_of(together[1]).data()};
    fold_together(crowd, how, sources, destinations, count);
    EXPECT_EQ(std::memcmp(together[0].data(), alone.data(), count * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(together[1].data(), alone.data(), count * sizeof(float)), 0);
    // Little is done alone; a lot by no more than there are.
    EXPECT_EQ(crowd.most(), count == 1 ? 0 : 4);
  }
}

TEST(Helpers, CopyEveryByteTogether) {
  for (const CopyWay way : {CopyWay::kCached, CopyWay::kPastCache}) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{4099}, std::size_t{3} << 20}) {
      Crowd crowd(3);
      const Means means{.tuning = {.copy_ways = {way, way, way}}, .helpers = crowd};
      Buffer from(size + 1);
      for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 31 >> 3U);
      Buffer to(size);
      copy_together(means, to, from.data() + 1);
      EXPECT_TRUE(std::equal(to.begin(), to.end(), from.begin() + 1)) << size;
    }
  }
}

TEST(CopyForPeers, WritesEveryByteAndNoOtherWhereverItBegins) {
  constexpr std::size_t kAround = 64;
  Buffer from(400);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i + 1);
  for (const CopyWay way : {CopyWay::kCached, CopyWay::kPastCache}) {
    for (std::size_t begin = 0; begin < 17; ++begin) {
      for (const std::size_t size : {std::size_t{0}, std::size_t{5}, std::size_t{16}, std::size_t{333}}) {
        Buffer to(kAround + begin + size + kAround, std::byte{0});
        copy_for_peers(ByteSpan(to).subspan(kAround + begin, size), from.data(), way);
        Buffer expected(to.size(), std::byte{0});
        std::memcpy(expected.data() + kAround + begin, from.data(), size);
        EXPECT_EQ(to, expected) << begin << " " << size;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::collective
