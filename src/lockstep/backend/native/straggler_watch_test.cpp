#include "lockstep/backend/native/straggler_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::backend {
namespace {

using namespace std::chrono_literals;

constexpr Rank kSlow{3};
constexpr Rank kOther{1};

// Operations that end one after the other, `step` apart.
class Group {
 public:
  explicit Group(Duration step) : step_(step) {}
  std::optional<StragglerWatch::Report> wait_for(Rank rank, Duration lost) {
    pass();
    return watch_.note(sequence_, rank, lost, now_);
  }
  // An operation that has waited for nobody.
  void pass() {
    ++sequence_;
    now_ += step_;
  }

 private:
  const Duration step_;
  StragglerWatch watch_;
  std::uint64_t sequence_ = 0;
  base::TimePoint now_{};
};

TEST(StragglerWatch, NamesARankThatIsWaitedForAgainAndAgain) {
  Group group(22ms);
  for (int i = 1; i < StragglerWatch::kEnough; ++i) EXPECT_FALSE(group.wait_for(kSlow, 20ms)) << i;
  const auto report = group.wait_for(kSlow, 20ms);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->rank, kSlow);
  EXPECT_EQ(report->lost, 160ms);
  EXPECT_EQ(report->text(),
            "rank 3 is slow: 8 of the last 16 operations have waited for it, 160 ms of 174 ms");
}

TEST(StragglerWatch, SaysItOnceAMinute) {
  Group group(1s);
  int reports = 0;
  for (int i = 0; i < 190; ++i) reports += group.wait_for(kSlow, 500ms) ? 1 : 0;
  EXPECT_EQ(reports, 4);
}

TEST(StragglerWatch, TurnsAreNobodysFault) {
  Group group(22ms);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(group.wait_for(Rank{i % 4}, 20ms)) << i;
}

TEST(StragglerWatch, NeitherAreRareOrShortWaits) {
  Group rare(22ms);
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(rare.wait_for(kSlow, 20ms)) << i;
    rare.pass();
    rare.pass();
  }
  Group short_ones(500us);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(short_ones.wait_for(kSlow, 400us)) << i;
  Group of_short_steps(6ms);  // 80 ms in a window
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(of_short_steps.wait_for(kSlow, 5ms)) << i;
  Group of_long_steps(1s);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(of_long_steps.wait_for(kSlow, 20ms)) << i;
}

TEST(StragglerWatch, TheOneThatCostsMostIsNamed) {
  Group group(60ms);
  bool named = false;
  for (int i = 0; i < 100; ++i) {
    const auto first = group.wait_for(kSlow, 40ms);
    const auto second = group.wait_for(kOther, 2ms);
    named |= first && first->rank == kSlow;
    EXPECT_FALSE(second);
  }
  EXPECT_TRUE(named);
}

}  // namespace
}  // namespace lockstep::backend
