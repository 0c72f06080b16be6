#include "lockstep/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/text.h"
#include "lockstep/testing/fake_clock.h"

namespace lockstep::base {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr Logger kStore("store");
constexpr Logger kLaunch("launch");

std::string logged(const std::function<void()>& body) {
  ::testing::internal::CaptureStderr();
  body();
  return ::testing::internal::GetCapturedStderr();
}

TEST(Log, LevelsApplyPerModule) {
  auto options = parse_log_options("warn,store=debug");
  ASSERT_TRUE(options.ok());
  configure_logging(*options);
  const std::string text = logged([] {
    kStore.debug("shown");
    kStore.trace("hidden one");
    kLaunch.info("hidden two");
    kLaunch.error("shown too");
  });
  EXPECT_THAT(text, HasSubstr("D store: shown\n"));
  EXPECT_THAT(text, HasSubstr("E launch: shown too\n"));
  EXPECT_THAT(text, Not(HasSubstr("hidden")));
  EXPECT_TRUE(kStore.enabled(LogLevel::kDebug));
  EXPECT_FALSE(kLaunch.enabled(LogLevel::kInfo));
}

TEST(Log, LinesNameTheRankAndAreNotFormatStrings) {
  configure_logging({.level = LogLevel::kInfo, .rank = Rank{3}});
  EXPECT_THAT(logged([] { kStore.info("100 {} %v"); }), HasSubstr("I [rank 3] store: 100 {} %v\n"));
}

TEST(Log, ARankThatIsLearntLaterIsNamedAndTheLevelsStay) {
  configure_logging({.level = LogLevel::kError, .modules = {{"store", LogLevel::kInfo}}});
  set_log_rank(Rank{5});
  EXPECT_THAT(logged([] { kStore.info("x"); }), HasSubstr("I [rank 5] store: x\n"));
  EXPECT_EQ(logged([] { kLaunch.warn("x"); }), "");
}

TEST(Log, AModuleThatNoLayerHasIsWarnedOfByOneRank) {
  const auto configure = [](std::string_view text, std::optional<Rank> rank) {
    return logged([&] {
      LogOptions options = *parse_log_options(text);
      options.rank = rank;
      configure_logging(options);
    });
  };
  EXPECT_THAT(configure("strore=trace", {}),
              AllOf(HasSubstr("\"strore\""), HasSubstr("rendezvous, shm, store")));
  EXPECT_THAT(configure("strore=trace", Rank{0}), HasSubstr("\"strore\""));
  EXPECT_EQ(configure("strore=trace", Rank{1}), "");
  EXPECT_EQ(configure("store=trace,ddp=off", {}), "");
}

TEST(Log, OffIsSilent) {
  configure_logging({.level = LogLevel::kOff});
  EXPECT_EQ(logged([] { kStore.error("x"); }), "");
}

TEST(Log, ABadLevelIsNamed) {
  const auto options = parse_log_options("info,store=loud");
  ASSERT_FALSE(options.ok());
  EXPECT_THAT(std::string(options.status().message()), HasSubstr("\"store=loud\""));
}

TEST(RateLimit, OneLinePerKeyAndPeriodAndCountsTheRest) {
  lockstep::testing::FakeClock clock;
  RateLimit limit(1min, clock);
  std::uint64_t suppressed = 99;
  EXPECT_TRUE(limit.allow("10.0.0.1", &suppressed));
  EXPECT_EQ(suppressed, 0U);
  EXPECT_TRUE(limit.allow("10.0.0.2"));
  EXPECT_FALSE(limit.allow("10.0.0.1"));
  EXPECT_FALSE(limit.allow("10.0.0.1"));
  clock.advance(61s);
  EXPECT_TRUE(limit.allow("10.0.0.1", &suppressed));
  EXPECT_EQ(suppressed, 2U);
}

TEST(RateLimit, ManyKeysShareOneAllowanceWhenItIsFull) {
  lockstep::testing::FakeClock clock;
  RateLimit limit(1min, clock);
  int allowed = 0;
  for (int i = 0; i < 5000; ++i) allowed += limit.allow(cat("peer ", i)) ? 1 : 0;
  EXPECT_EQ(allowed, 1025);
  clock.advance(2min);
  EXPECT_TRUE(limit.allow("a new one"));
}

}  // namespace
}  // namespace lockstep::base
