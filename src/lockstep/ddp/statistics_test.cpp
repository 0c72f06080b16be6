#include "lockstep/ddp/statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/ddp/logging_data.h"

namespace lockstep::ddp {
namespace {

using namespace std::chrono_literals;

PassEvent event(PassPhase phase, Duration at, std::size_t index = 0) {
  return {.phase = phase, .at = base::TimePoint(at), .index = index};
}

TEST(Statistics, FollowFromTheEventsOfAPass) {
  Statistics statistics;
  for (const Duration begin : {Duration(0s), Duration(100s)}) {
    statistics.begin_iteration();
    statistics.take(event(PassPhase::kForward, begin));
    statistics.take(event(PassPhase::kBackward, begin + 10s));
    statistics.take(event(PassPhase::kReady, begin + 12s, 1));
    statistics.take(event(PassPhase::kLaunched, begin + 13s, 0));
    statistics.take(event(PassPhase::kReady, begin + 20s, 0));
    statistics.take(event(PassPhase::kLaunched, begin + 20s, 1));
    statistics.take(event(PassPhase::kFinished, begin + (begin == 0s ? 23s : 33s)));
  }
  EXPECT_EQ(statistics.sample().last.forward, 10s);
  EXPECT_EQ(statistics.sample().last.backward, 10s);
  EXPECT_EQ(statistics.sample().last.communication, 20s);
  EXPECT_EQ(statistics.sample().last.overlap, 7s);
  EXPECT_EQ(statistics.sample().average.communication, 15s);
  EXPECT_THAT(statistics.sample().ready_order, ::testing::ElementsAre(1, 0));
  EXPECT_EQ(statistics.sample().buckets_reduced, 2U);
}

TEST(Statistics, APassThatLeavesOutEveryBucketHasNoCommunication) {
  Statistics statistics;
  for (const Duration begin : {Duration(100s), Duration(200s)}) {
    statistics.begin_iteration();
    statistics.take(event(PassPhase::kForward, begin));
    statistics.take(event(PassPhase::kBackward, begin + 1s));
    if (begin == 100s) statistics.take(event(PassPhase::kLaunched, begin + 2s, 0));
    statistics.take(event(PassPhase::kFinished, begin + 4s));
  }
  EXPECT_EQ(statistics.sample().buckets_reduced, 0U);
  EXPECT_EQ(statistics.sample().last.communication, 0s);
  EXPECT_EQ(statistics.sample().last.overlap, 0s);
  EXPECT_EQ(statistics.sample().average.communication, 1s);
}

TEST(Statistics, TheFirstTenPassesAreSampledAndThenOneOfAHundred) {
  Statistics statistics;
  std::vector<std::int64_t> sampled;
  for (int i = 1; i <= 310; ++i) {
    statistics.begin_iteration();
    if (statistics.samples_this_one()) sampled.push_back(i);
  }
  EXPECT_THAT(sampled, ::testing::ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 100, 200, 300));
  statistics.set_sample_rate(1);
  statistics.begin_iteration();
  EXPECT_TRUE(statistics.samples_this_one());
}

TEST(LoggingData, IsJsonWhateverTheEnvironmentAndErrorsHold) {
  const LoggingData data{.texts = {{"error", "a\xff\"b"}}, .numbers = {{"avg", -1}, {"rank", 2}}};
  EXPECT_EQ(data.json(), "{\"avg\":-1,\"error\":\"a\xef\xbf\xbd\\\"b\",\"rank\":2}");
}

}  // namespace
}  // namespace lockstep::ddp
