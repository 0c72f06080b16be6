#include "lockstep/ddp/launch_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <stdexcept>
#include <thread>

namespace lockstep::ddp {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(LaunchQueue, LaunchesInOrderWhatIsComplete) {
  LaunchQueue queue({2, 1, 1});
  std::vector<std::size_t> launched;
  const auto launch = [&](std::size_t bucket) { launched.push_back(bucket); };
  queue.count_down(1, launch);
  queue.count_down(0, launch);
  EXPECT_THAT(launched, IsEmpty());
  EXPECT_FALSE(queue.has_begun());
  queue.count_down(0, launch);
  EXPECT_THAT(launched, ElementsAre(0, 1));
  EXPECT_TRUE(queue.has_begun());
  EXPECT_FALSE(queue.is_over());
  queue.count_down(2, launch);
  EXPECT_THAT(launched, ElementsAre(0, 1, 2));
  EXPECT_TRUE(queue.is_over());
}

TEST(LaunchQueue, IsAskedAgainByWhatItLaunches) {
  LaunchQueue queue({1, 1});
  std::vector<std::size_t> launched;
  const auto note = [&](std::size_t bucket) { launched.push_back(bucket); };
  queue.count_down(0, [&](std::size_t bucket) {
    note(bucket);
    if (bucket == 0) queue.count_down(1, [](std::size_t) { ADD_FAILURE() << "two at once"; });
  });
  EXPECT_THAT(launched, ElementsAre(0, 1));
}

TEST(LaunchQueue, LaunchesNothingAfterAnException) {
  LaunchQueue queue({1, 1});
  EXPECT_THROW(queue.count_down(0, [](std::size_t) { throw std::runtime_error("no"); }), std::runtime_error);
  queue.count_down(1, [](std::size_t) { ADD_FAILURE() << "launched"; });
  EXPECT_FALSE(queue.is_over());
}

TEST(LaunchQueue, LaunchesEachOnceAndInOrderHoweverManyThreadsCount) {
  constexpr std::size_t kBuckets = 50;
  constexpr int kThreads = 4;
  for (unsigned round = 0; round < 20; ++round) {
    LaunchQueue queue(std::vector<std::size_t>(kBuckets, kThreads));
    std::vector<std::size_t> launched;  // by one at a time, or the thread sanitizer says so
    std::atomic<int> at_it = 0;
    const auto count = [&](unsigned seed) {
      std::vector<std::size_t> order(kBuckets);
      for (std::size_t i = 0; i < kBuckets; ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), std::mt19937(seed));
      for (const std::size_t bucket : order) {
        queue.count_down(bucket, [&](std::size_t which) {
          EXPECT_EQ(++at_it, 1);
          launched.push_back(which);
          --at_it;
        });
      }
    };
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < kThreads; ++i) threads.emplace_back(count, kThreads * round + i);
    threads.clear();
    ASSERT_EQ(launched.size(), kBuckets);
    EXPECT_TRUE(std::is_sorted(launched.begin(), launched.end()));
    EXPECT_TRUE(queue.is_over());
  }
}

}  // namespace
}  // namespace lockstep::ddp
