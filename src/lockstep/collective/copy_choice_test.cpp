#include "lockstep/collective/copy_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace lockstep::collective {
namespace {

using std::chrono::microseconds;

struct Host {
  Duration cached;
  Duration past_cache;
};

// The ways of so many copies of 1 MiB on a host where they take that long.
std::vector<CopyWay> copies(CopyChoice& choice, int count, const Host& host) {
  std::vector<CopyWay> ways;
  for (int i = 0; i < count; ++i) {
    ways.push_back(choice.next());
    choice.took(ways.back(), std::size_t{1} << 20,
                ways.back() == CopyWay::kCached ? host.cached : host.past_cache);
  }
  return ways;
}

long past_cache(const std::vector<CopyWay>& ways) {
  return std::count(ways.begin(), ways.end(), CopyWay::kPastCache);
}

TEST(CopyChoice, BeginsWithBothAndTakesTheBetterOne) {
  CopyChoice choice;
  const auto ways = copies(choice, 640, {.cached = microseconds(500), .past_cache = microseconds(70)});
  EXPECT_EQ(ways[0], CopyWay::kCached);
  EXPECT_EQ(ways[1], CopyWay::kPastCache);
  EXPECT_GE(past_cache(ways), 600);
  EXPECT_LT(past_cache(ways), 640);  // the other one is tried again
}

TEST(CopyChoice, PastTheCacheMayTakeALittleLonger) {
  CopyChoice near;
  EXPECT_GE(past_cache(copies(near, 640, {.cached = microseconds(60), .past_cache = microseconds(70)})), 600);
  CopyChoice far;
  EXPECT_LE(past_cache(copies(far, 640, {.cached = microseconds(60), .past_cache = microseconds(90)})), 40);
}

TEST(CopyChoice, FollowsAHostThatChanges) {
  CopyChoice choice;
  (void)copies(choice, 640, {.cached = microseconds(50), .past_cache = microseconds(90)});
  (void)copies(choice, 640, {.cached = microseconds(500), .past_cache = microseconds(90)});
  EXPECT_GE(past_cache(copies(choice, 640, {.cached = microseconds(500), .past_cache = microseconds(90)})),
            600);
  (void)copies(choice, 6400, {.cached = microseconds(50), .past_cache = microseconds(90)});
  EXPECT_LE(past_cache(copies(choice, 640, {.cached = microseconds(50), .past_cache = microseconds(90)})),
            40);
}

}  // namespace
}  // namespace lockstep::collective
