#include "lockstep/transport/loop.h"

#include <gtest/gtest.h>

#include <csignal>
#include <future>
#include <numeric>
#include <thread>
#include <vector>

#include "lockstep/testing/fake_clock.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::transport {
namespace {

TEST(Loop, RunsWhatIsPostedInOrderOnOneThreadThatIsNotOurs) {
  ASSERT_OK_AND_ASSIGN(const auto loop, Loop::start("test", Clock::steady()));
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) {
    loop->post([&, i] {
      EXPECT_TRUE(loop->is_this_thread());
      order.push_back(i);
    });
  }
  EXPECT_FALSE(loop->is_this_thread());
  loop->run_and_drain([] {});
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST(Loop, NothingOvertakesWhatATaskHasPosted) {
  ASSERT_OK_AND_ASSIGN(const auto loop, Loop::start("test", Clock::steady()));
  std::vector<int> order;
  loop->run_and_drain([&] {
    loop->post([&] { order.push_back(1); });
    std::thread([&] { loop->post([&] { order.push_back(2); }); }).join();
  });
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(Loop, DrainWaitsForWhatTheTaskPosts) {
  ASSERT_OK_AND_ASSIGN(const auto loop, Loop::start("test", Clock::steady()));
  for (int round = 0; round < 200; ++round) {
    int ran = 0;
    loop->run_and_drain([&] {
      for (int i = 0; i < 10; ++i) loop->post([&] { ++ran; });
    });
    ASSERT_EQ(ran, 10);
  }
}

TEST(Loop, DestructionRunsWhatWasPosted) {
  int ran = 0;
  {
    ASSERT_OK_AND_ASSIGN(const auto loop, Loop::start("test", Clock::steady()));
    for (int i = 0; i < 10; ++i) loop->post([&, target = loop.get()] { target->post([&] { ++ran; }); });
  }
  EXPECT_EQ(ran, 10);
}

TEST(Loop, LeavesSignalsToOtherThreads) {
  ASSERT_OK_AND_ASSIGN(const auto loop, Loop::start("test", Clock::steady()));
  loop->run_and_drain([] {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    EXPECT_EQ(sigismember(&blocked, SIGTERM), 1);
    EXPECT_EQ(sigismember(&blocked, SIGINT), 1);
  });
  sigset_t own;
  pthread_sigmask(SIG_SETMASK, nullptr, &own);
  EXPECT_EQ(sigismember(&own, SIGTERM), 0);
}

class TimerTest : public ::testing::Test {
 protected:
  testing::FakeClock clock_;
  std::unique_ptr<Loop> loop_ = Loop::start("test", clock_).value();
  std::unique_ptr<Timer> timer_ = std::make_unique<Timer>(*loop_);
};

TEST_F(TimerTest, RingsOnceAndNotBeforeItsTime) {
  std::promise<base::TimePoint> rang;
  const base::TimePoint at = clock_.now() + std::chrono::seconds(10);
  loop_->run_and_drain([&] { timer_->arm_on_loop(at, [&] { rang.set_value(clock_.now()); }); });
  auto answer = rang.get_future();
  clock_.advance(std::chrono::seconds(9));
  ASSERT_EQ(answer.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  clock_.advance(std::chrono::seconds(1));
  ASSERT_EQ(answer.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_EQ(answer.get(), at);
  loop_->run_and_drain([&] { EXPECT_FALSE(timer_->armed()); });
}

TEST_F(TimerTest, ATimerThatIsReplacedDisarmedOrDestroyedDoesNotRing) {
  const auto never = [] { FAIL(); };
  std::promise<void> rang;
  Timer probe(*loop_);
  loop_->run_and_drain([&] {
    timer_->arm_on_loop(clock_.now() + std::chrono::seconds(1), never);
    timer_->arm_on_loop(clock_.now() + std::chrono::seconds(2), never);
    timer_->disarm_on_loop();
    Timer gone(*loop_);
    gone.arm_on_loop(clock_.now() + std::chrono::seconds(1), never);
    probe.arm_on_loop(clock_.now() + std::chrono::seconds(5), [&] { rang.set_value(); });
  });
  clock_.advance(std::chrono::seconds(10));
  ASSERT_EQ(rang.get_future().wait_for(std::chrono::minutes(1)), std::future_status::ready);
  loop_->run_and_drain([] {});
}

TEST_F(TimerTest, TheEndOfTimeIsNever) {
  loop_->run_and_drain([&] {
    timer_->arm_on_loop(base::TimePoint::max(), [] { FAIL(); });
    EXPECT_FALSE(timer_->armed());
  });
}

}  // namespace
}  // namespace lockstep::transport
