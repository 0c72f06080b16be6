#include "lockstep/transport/shm/range_set.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace lockstep::transport::shm {
namespace {

using Gap = std::optional<RangeSet::Range>;

bool is(const Gap& gap, std::uint64_t first, std::uint64_t end) {
  return gap && gap->first == first && gap->end == end;
}

TEST(RangeSet, AGapEndsAtWhatIsThereAtTheEndOrAtTheLimit) {
  RangeSet set;
  set.add({10, 20});
  set.add({30, 40});
  EXPECT_TRUE(is(set.first_gap({0, 5}, 0), 0, 5));
  EXPECT_TRUE(is(set.first_gap({0, 5}, 100), 0, 10));
  EXPECT_TRUE(is(set.first_gap({10, 35}, 0), 20, 30));
  EXPECT_TRUE(is(set.first_gap({35, 45}, 60), 40, 60));
  EXPECT_FALSE(set.first_gap({12, 18}, 100));
  EXPECT_FALSE(set.first_gap({30, 40}, 100));
}

TEST(RangeSet, IsTheSetThatItShouldBe) {
  constexpr std::uint64_t kAll = 64;
  std::mt19937 random(7);
  const auto below = [&](std::uint64_t end) {
    return std::uniform_int_distribution<std::uint64_t>(0, end)(random);
  };
  RangeSet set;
  std::set<std::uint64_t> expected;
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t first = below(kAll);
    const std::uint64_t end = first + below(kAll - first);
    const bool adds = below(1) == 0;
    adds ? set.add({first, end}) : set.remove({first, end});
    for (std::uint64_t n = first; n < end; ++n) adds ? void(expected.insert(n)) : void(expected.erase(n));

    const std::uint64_t from = below(kAll - 1);
    std::uint64_t missing = from;
    while (expected.contains(missing)) ++missing;
    std::uint64_t until = missing;
    while (until < kAll && !expected.contains(until)) ++until;
    const Gap gap = set.first_gap({from, kAll}, kAll);
    if (missing >= kAll) {
      EXPECT_FALSE(gap) << "step " << i;
    } else {
      EXPECT_TRUE(is(gap, missing, until)) << "step " << i;
    }
  }
}

}  // namespace
}  // namespace lockstep::transport::shm
