#include "tools/bench/spread.h"

#include <gtest/gtest.h>

namespace lockstep::bench {
namespace {

TEST(Spread, IsTheMiddleAndTheQuartilesInAnyOrder) {
  const Spread spread = quartiles_of({5, 1, 4, 2, 3});
  EXPECT_EQ(spread.low, 2);
  EXPECT_EQ(spread.median, 3);
  EXPECT_EQ(spread.high, 4);
}

TEST(Spread, IsTheMiddleAndTheEnds) {
  const Spread spread = range_of({5, 1, 4, 2, 3});
  EXPECT_EQ(spread.low, 1);
  EXPECT_EQ(spread.median, 3);
  EXPECT_EQ(spread.high, 5);
}

TEST(Spread, OfOneValueIsThatValue) {
  const Spread spread = range_of({7});
  EXPECT_EQ(spread.low, 7);
  EXPECT_EQ(spread.median, 7);
  EXPECT_EQ(spread.high, 7);
}

}  // namespace
}  // namespace lockstep::bench
