#include "lockstep/base/clock.h"

#include <gtest/gtest.h>

#include <thread>

#include "lockstep/base/mutex.h"
#include "lockstep/testing/fake_clock.h"

namespace lockstep::base {
namespace {

using namespace std::chrono_literals;

TEST(Deadline, CountsDownOnItsOwnClock) {
  lockstep::testing::FakeClock clock;
  const Deadline deadline = clock.in(10s);
  EXPECT_FALSE(deadline.expired());
  EXPECT_EQ(deadline.remaining(), 10s);
  clock.advance(4s);
  EXPECT_EQ(deadline.remaining(), 6s);
  clock.advance(7s);
  EXPECT_TRUE(deadline.expired());
  EXPECT_EQ(deadline.remaining(), 0s);
}

TEST(Deadline, AtMostTakesTheEarlier) {
  lockstep::testing::FakeClock clock;
  EXPECT_EQ(clock.in(10s).at_most(3s).remaining(), 3s);
  EXPECT_EQ(clock.in(2s).at_most(3s).remaining(), 2s);
}

TEST(Deadline, HugeDurationsDoNotOverflow) {
  const Deadline deadline = Clock::steady().in(Duration::max());
  EXPECT_FALSE(deadline.expired());
  EXPECT_EQ(deadline.poll_millis(), 3'600'000);
}

TEST(Deadline, PollMillisIsZeroOnlyWhenExpired) {
  const Deadline soon = Clock::steady().in(Duration(1));
  const Deadline later = Clock::steady().in(100us);
  EXPECT_LE(soon.poll_millis(), 1);
  EXPECT_EQ(Deadline(Clock::steady(), TimePoint{}).poll_millis(), 0);
  EXPECT_LE(later.poll_millis(), 1);
}

TEST(CondVar, WaitUntilEndsWhenAClockMovedByHandPassesTheDeadline) {
  lockstep::testing::FakeClock clock;
  Mutex mutex;
  CondVar condition;
  const Deadline deadline = clock.in(1h);
  bool timed_out = false;
  std::thread waiter([&] {
    MutexLock lock(mutex);
    while (condition.wait_until(mutex, deadline)) {
    }
    timed_out = true;
  });
  clock.advance(2h);
  waiter.join();
  EXPECT_TRUE(timed_out);
}

TEST(CondVar, NotifyWakesAWaiter) {
  Mutex mutex;
  CondVar condition;
  bool ready = false;
  bool seen = false;
  std::thread waiter([&] {
    MutexLock lock(mutex);
    while (!ready) condition.wait(mutex);
    seen = true;
  });
  {
    MutexLock lock(mutex);
    ready = true;
  }
  condition.notify_all();
  waiter.join();
  EXPECT_TRUE(seen);
}

}  // namespace
}  // namespace lockstep::base
