#include "lockstep/base/beat_watch.h"

#include <gmock/gmock.h>

#include "lockstep/testing/fake_clock.h"

namespace lockstep::base {
namespace {

using namespace std::chrono_literals;

class Beats : public ::testing::Test {
 protected:
  // All nodes beat but `silent`, every half second.
  std::optional<int> after(Duration time, int silent) {
    for (Duration passed{}; passed < time; passed += 500ms) {
      clock_.advance(500ms);
      for (int node = 0; node < 3; ++node) counts_[static_cast<std::size_t>(node)] += node == silent ? 0 : 1;
      if (const auto found = watch_.look(counts_, clock_.now())) return found;
    }
    return std::nullopt;
  }
  testing::FakeClock clock_;
  BeatWatch watch_{3, 4s, 1s, clock_.now()};
  std::vector<std::int64_t> counts_ = {0, 0, 0};
};

TEST_F(Beats, NobodyIsGoneWhileAllBeat) { EXPECT_EQ(after(60s, -1), std::nullopt); }

TEST_F(Beats, OneThatIsSilentForTooLongIsNamed) {
  EXPECT_EQ(after(10s, -1), std::nullopt);
  EXPECT_EQ(after(4s, 2), std::nullopt);
  EXPECT_EQ(after(1s, 2), 2);
}

TEST_F(Beats, APauseWithinTheLimitIsForgiven) {
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(after(3500ms, 1), std::nullopt);
    EXPECT_EQ(after(500ms, -1), std::nullopt);
  }
}

TEST_F(Beats, AWatchThatWasItselfLateBlamesNobody) {
  EXPECT_EQ(after(10s, -1), std::nullopt);
  EXPECT_EQ(after(2s, 1), std::nullopt);
  clock_.advance(1h);  // the machine was suspended
  EXPECT_EQ(watch_.look(counts_, clock_.now()), std::nullopt);
  // The silent one has its whole time again.
  EXPECT_EQ(after(4s, 1), std::nullopt);
  EXPECT_EQ(after(500ms, 1), 1);
}

TEST_F(Beats, ASilenceIsGivenItsTimeAgainOnlyOnce) {
  EXPECT_EQ(after(10s, -1), std::nullopt);
  for (int pause = 0; pause < 3; ++pause) {
    EXPECT_EQ(after(500ms, 1), std::nullopt);
    clock_.advance(3s);  // every second look is late; from the second one on it counts 1 s
    EXPECT_EQ(watch_.look(counts_, clock_.now()), std::nullopt);
  }
  EXPECT_EQ(after(1s, 1), std::nullopt);
  EXPECT_EQ(after(500ms, 1), 1);
}

TEST_F(Beats, WhoIsForgivenHasItsWholeTime) {
  EXPECT_EQ(after(10s, -1), std::nullopt);
  EXPECT_EQ(after(4s, 1), std::nullopt);
  watch_.forgive();
  EXPECT_EQ(after(4s, 1), std::nullopt);
  EXPECT_EQ(after(500ms, 1), 1);
}

TEST_F(Beats, AWatchThatIsLateEveryTimeStillFindsOut) {
  EXPECT_EQ(after(10s, -1), std::nullopt);
  for (int look = 1; look <= 6; ++look) {
    clock_.advance(3s);
    ++counts_[0];
    ++counts_[1];
    EXPECT_EQ(watch_.look(counts_, clock_.now()), look < 6 ? std::nullopt : std::optional(2)) << look;
  }
}

}  // namespace
}  // namespace lockstep::base
