#include "lockstep/transport/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <functional>

#include "lockstep/base/text.h"
#include "lockstep/testing/communicator_world.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::transport {
namespace {

using namespace std::chrono_literals;
using testing::CommunicatorWorld;

Status died(int rank, std::optional<std::uint64_t> sequence, int reporter) {
  return Status::disconnected(
      cat("rank ", rank, " died"),
      {.failure = Failure::kPeerDied, .rank = Rank{reporter}, .peer = Rank{rank}, .sequence = sequence});
}

// Two hosts of two ranks each; the first rank of each records a failure before it hears of the other's. What
// every rank quotes then, if the news may take so long.
std::vector<Status> quoted_within(Duration merge, const Status& on_first_host, const Status& on_second_host) {
  std::vector<Status> quotes(4);
  std::barrier all(4);
  CommunicatorWorld{{0, 0, 1, 1}, {.merge = merge}}.run([&](Communicator& comm) {
    const int rank = comm.position();
    const Status& own = rank < 2 ? on_first_host : on_second_host;
    const bool reports = rank % 2 == 0;
    if (reports) {
      EXPECT_TRUE(comm.board().fail(own));
    }
    all.arrive_and_wait();
    quotes[static_cast<std::size_t>(rank)] = reports ? comm.fail(own) : comm.failure();
    all.arrive_and_wait();
  });
  return quotes;
}

// With more time where the machine is so busy that it was not enough: then each host quotes its own.
std::vector<Status> quoted(const Status& on_first_host, const Status& on_second_host) {
  for (Duration merge = 500ms;; merge *= 4) {
    std::vector<Status> quotes = quoted_within(merge, on_first_host, on_second_host);
    if (merge > 20s || quotes.front().cause() == quotes.back().cause()) return quotes;
  }
}

TEST(Communicator, AllHostsQuoteTheFailureOfTheLowestOperation) {
  const std::vector<Status> quotes = quoted(died(1, 7, 0), died(3, 5, 2));
  for (const Status& quote : quotes) EXPECT_EQ(quote.cause(), died(3, 5, 2).cause()) << quote.text();
}

TEST(Communicator, AllHostsQuoteTheFailureOfTheLowestRankInOneOperation) {
  const std::vector<Status> quotes = quoted(died(3, 5, 0), died(1, 5, 2));
  for (const Status& quote : quotes) EXPECT_EQ(quote.cause(), died(1, 5, 2).cause()) << quote.text();
}

TEST(Communicator, AFailureInAnOperationIsEarlierThanOneOutside) {
  const std::vector<Status> quotes = quoted(died(1, {}, 0), died(3, 9, 2));
  for (const Status& quote : quotes) EXPECT_EQ(quote.cause(), died(3, 9, 2).cause()) << quote.text();
}

// Whether hosts that fail in `round` need not wait until nothing can come any more. A try that is late, as
// where the machine is busy, makes them wait: then once more.
bool agree_at_once(const std::function<void(Duration merge)>& round) {
  constexpr Duration kMerge = 4s;
  for (int turn = 0; turn < 5; ++turn) {
    const base::TimePoint begun = Clock::steady().now();
    round(kMerge);
    if (Clock::steady().now() - begun < kMerge / 2) return true;
  }
  return false;
}

TEST(Communicator, HostsThatHaveAnsweredEachOtherAgreeAtOnce) {
  std::vector<Status> quotes;
  EXPECT_TRUE(
      agree_at_once([&](Duration merge) { quotes = quoted_within(merge, died(1, 7, 0), died(3, 5, 2)); }));
  for (const Status& quote : quotes) EXPECT_EQ(quote.cause(), died(3, 5, 2).cause()) << quote.text();
}

TEST(Communicator, AHostThatHasLeftIsNotWaitedFor) {
  EXPECT_TRUE(agree_at_once([](Duration merge) {
    std::barrier both(2);
    CommunicatorWorld{{0, 1}, {.merge = merge}}.run([&](Communicator& comm) {
      both.arrive_and_wait();
      if (comm.position() == 0) {
        EXPECT_EQ(comm.fail(died(0, 7, 0)).cause(), died(0, 7, 0).cause());
      }
    });
  }));
}

// It waits for the others, who tell only the other members of its host.
TEST(Communicator, WhoIsTakenForDeadAndLivesIsTold) {
  std::barrier all(3);
  CommunicatorWorld{{0, 0, 1}}.run([&](Communicator& comm) {
    if (comm.position() == 0) (void)comm.fail(died(2, 7, 0));
    const Deadline limit = Clock::steady().in(10s);
    while (comm.failure().ok() && !limit.expired()) std::this_thread::yield();
    EXPECT_EQ(comm.failure().cause(), died(2, 7, 0).cause()) << comm.failure().text();
    all.arrive_and_wait();
  });
}

// It may have recorded something else.
TEST(Communicator, AHostWhoseOnlyMemberIsLostButLivesIsWaitedFor) {
  constexpr Duration kMerge = 300ms;
  for (const Failure lost : {Failure::kPeerStalled, Failure::kPeerUnreachable}) {
    std::barrier both(2);
    CommunicatorWorld{{0, 1}, {.merge = kMerge}}.run([&](Communicator& comm) {
      if (comm.position() == 0) {
        const Status why =
            Status::disconnected("rank 1 is lost", {.failure = lost, .peer = Rank{1}, .sequence = 7});
        const base::TimePoint begun = Clock::steady().now();
        EXPECT_EQ(comm.fail(why).cause(), why.cause());
        EXPECT_GE(Clock::steady().now() - begun, kMerge);
      }
      both.arrive_and_wait();
    });
  }
}

TEST(Communicator, OnOneHostTheFirstFailureWins) {
  CommunicatorWorld{{0, 0}}.run([](Communicator& comm) {
    if (comm.position() != 0) return;
    EXPECT_EQ(comm.fail(died(1, 7, 0)).cause().sequence, 7U);
    EXPECT_EQ(comm.fail(died(1, 5, 0)).cause().sequence, 7U);
    comm.board().hear(died(1, 4, 0));
    EXPECT_EQ(comm.failure().cause().sequence, 7U);
  });
}

TEST(Communicator, WhatIsHeardAfterTheHostsHaveAgreedChangesNothing) {
  CommunicatorWorld{{0, 1}}.run([](Communicator& comm) {
    if (comm.position() != 0) return;
    EXPECT_EQ(comm.fail(died(1, 7, 0)).cause().sequence, 7U);  // waits until it is final
    comm.board().hear(died(1, 5, 0));
    EXPECT_EQ(comm.failure().cause().sequence, 7U);
  });
}

}  // namespace
}  // namespace lockstep::transport
