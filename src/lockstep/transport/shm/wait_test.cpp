#include "lockstep/transport/shm/wait.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <thread>
#include <vector>

#include "lockstep/testing/fake_clock.h"

namespace lockstep::transport::shm {
namespace {

using namespace std::chrono_literals;

struct Flag final : Watch {
  std::atomic<bool> raised = false;
  std::atomic<int> changed_at = -1;
  bool stop() override { return raised; }
  void changed(std::size_t place) override { changed_at = static_cast<int>(place); }
};

Waited wait_for(Signal& signal, std::uint32_t target, Watch& watch, const Deadline& deadline,
                const Patience& patience) {
  Signal* const one = &signal;
  return wait_for_all({&one, 1}, target, watch, deadline, patience);
}

// One that spins, one for more ranks than cores, and one that sleeps at once.
const Patience kEvery[] = {
    Patience::for_occupancy(WorldSize{2}, 2), Patience::for_occupancy(WorldSize{8}, 2), {}};

TEST(Signal, CountsAcrossTheWrap) {
  EXPECT_TRUE(reached(5, 5));
  EXPECT_TRUE(reached(6, 5));
  EXPECT_FALSE(reached(4, 5));
  EXPECT_TRUE(reached(1, UINT32_MAX));
  EXPECT_FALSE(reached(UINT32_MAX, 1));
}

// F11: set forward it would end a wait too early, set back never.
TEST(Signal, AChangedBitEndsEveryWait) {
  for (const Patience& patience : kEvery) {
    for (const std::uint32_t value : {0U, 1U, 7U, UINT32_MAX}) {
      for (unsigned bit = 0; bit < 64; ++bit) {
        Signal signals[2]{};
        Flag stop;
        for (Signal& signal : signals) signal.raise(value);
        ASSERT_TRUE(signals[1].read().intact);
        signals[1].word.fetch_xor(std::uint64_t{1} << bit);
        Signal* const both[] = {&signals[0], &signals[1]};
        ASSERT_EQ(wait_for_all(both, value, stop, Clock::steady().in(30s), patience), Waited::kChanged)
            << value << " with bit " << bit;
        EXPECT_EQ(stop.changed_at, 1);
        signals[1].raise(value);
        EXPECT_EQ(wait_for_all(both, value, stop, Clock::steady().in(30s), patience), Waited::kReached);
      }
    }
  }
}

TEST(Signal, PingPongBetweenThreadsLosesNoWakeUp) {
  for (const Patience& patience : kEvery) {
    Signal ping{};
    Signal pong{};
    Flag stop;
    const Deadline deadline = Clock::steady().in(30s);
    constexpr std::uint32_t kRounds = 2000;
    std::thread other([&] {
      for (std::uint32_t i = 1; i <= kRounds; ++i) {
        ASSERT_EQ(wait_for(ping, i, stop, deadline, patience), Waited::kReached);
        pong.raise(i);
      }
    });
    for (std::uint32_t i = 1; i <= kRounds; ++i) {
      ping.raise(i);
      ASSERT_EQ(wait_for(pong, i, stop, deadline, patience), Waited::kReached);
    }
    other.join();
  }
}

TEST(Signal, WhatWasWrittenBeforeARaiseIsSeenAfterTheWait) {
  Signal signal{};
  Flag stop;
  std::uint64_t payload = 0;  // plain: the thread sanitizer would see a missing order
  std::thread writer([&] {
    payload = 42;
    signal.raise(1);
  });
  EXPECT_EQ(wait_for(signal, 1, stop, Clock::steady().in(30s), {}), Waited::kReached);
  EXPECT_EQ(payload, 42U);
  writer.join();
}

TEST(Signal, AllMustHaveReachedIt) {
  std::vector<Signal> signals(5);
  std::vector<Signal*> pointers;
  for (Signal& signal : signals) pointers.push_back(&signal);
  Flag stop;
  std::vector<std::thread> writers;
  for (Signal& signal : signals) writers.emplace_back([&signal] { signal.raise(3); });
  EXPECT_EQ(wait_for_all(pointers, 3, stop, Clock::steady().in(30s), {}), Waited::kReached);
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(wait_for_all({}, 3, stop, Clock::steady().in(30s), {}), Waited::kReached);
}

TEST(Signal, TheDeadlineEndsAWait) {
  lockstep::testing::FakeClock clock;
  Flag stop;
  Signal signal{};
  const Deadline deadline = clock.in(1h);
  std::thread mover([&] { clock.advance(2h); });
  EXPECT_EQ(wait_for(signal, 1, stop, deadline, {}), Waited::kTimeout);
  mover.join();
  EXPECT_EQ(signal.sleepers.load(), 0U);
}

TEST(Signal, AStopEndsAWaitAtOnceWhenItIsNudged) {
  Flag stop;
  Signal signal{};
  std::thread stopper([&] {
    while (signal.sleepers.load() == 0) std::this_thread::yield();
    stop.raised = true;
    signal.nudge();
  });
  EXPECT_EQ(wait_for(signal, 1, stop, Clock::steady().in(30s), {}), Waited::kStopped);
  stopper.join();
}

TEST(Signal, WakesAnotherProcess) {
  void* const shared = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* signals = static_cast<Signal*>(shared);
  Flag stop;
  const pid_t child = ::fork();
  if (child == 0) {
    const Waited waited = wait_for(signals[0], 1, stop, Clock::steady().in(30s), {});
    signals[1].raise(1);
    ::_exit(waited == Waited::kReached ? 0 : 1);
  }
  while (signals[0].sleepers.load() == 0) std::this_thread::yield();
  signals[0].raise(1);
  EXPECT_EQ(wait_for(signals[1], 1, stop, Clock::steady().in(30s), {}), Waited::kReached);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::munmap(shared, 4096);
}

TEST(Patience, SpinsOnlyWhereEveryRankHasACore) {
  EXPECT_GT(Patience::for_occupancy(WorldSize{2}, 2).spin, 0us);
  EXPECT_EQ(Patience::for_occupancy(WorldSize{3}, 2).spin, 0us);
  EXPECT_LE(Patience::for_occupancy(WorldSize{3}, 2).pauses, 50);
  EXPECT_LE(Patience::for_occupancy(WorldSize{3}, 2).yields, 100);
}

}  // namespace
}  // namespace lockstep::transport::shm
