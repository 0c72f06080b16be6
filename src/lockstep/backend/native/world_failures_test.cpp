// What the ranks of a world hear when one of them dies, stops, leaves, is late or gives up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <new>
#include <vector>

#include "lockstep/backend/native/world_test_support.h"
#include "lockstep/backend/operations.h"
#include "lockstep/backend/rounds.h"
#include "lockstep/base/text.h"
#include "lockstep/testing/process_world.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::backend {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::ProcessWorld;
using lockstep::testing::StatusIs;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What ranks that have just met may need, on a busy machine, to be in the same operation.
constexpr Duration kTogether = 2s;

// How rounds are run: by the group's worker, or by the calling thread.
Status start_and_wait(Backend& group, const Rounds& rounds) {
  return dynamic_cast<RoundStarter&>(group).start_rounds(rounds, {})->wait();
}
Status run_here(Backend& group, const Rounds& rounds) { return run_rounds(group, rounds, {}); }

// The second of two rounds is what `second` gives on rank 1.
void expect_to_end_the_group(Backend& group, Status (*run)(Backend&, const Rounds&),
                             const std::function<Result<Call>()>& second, const char* why) {
  const auto barrier_call = [] { return Result<Call>(Call{.kind = OpKind::kBarrier}); };
  Rounds rounds;
  rounds.calls.emplace_back(barrier_call);
  rounds.calls.emplace_back(group.rank() == Rank{1} ? second : barrier_call);
  rounds.finish = []() -> Status { return Status::internal("is not come to"); };
  const Status status = run(group, rounds);
  EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  EXPECT_EQ(status.failure(), Failure::kNoMemory) << status.text();
  EXPECT_FALSE(barrier(group).ok());
}

TEST(World, ARoundThatFailsEndsTheGroup) {
  EXPECT_OK(run_ranks(3, [](const SpawnedRank& rank) {
    const auto world = join(rank);
    ASSERT_TRUE(world);
    for (auto* const run : {&start_and_wait, &run_here}) {
      auto one = world->new_group({Rank{0}, Rank{1}, Rank{2}});
      auto other = world->new_group({Rank{0}, Rank{1}, Rank{2}});
      ASSERT_OK(one.status());
      ASSERT_OK(other.status());
      expect_to_end_the_group(
          **one, run,
          []() -> Result<Call> { return Status::internal("out of paper", {.failure = Failure::kNoMemory}); },
          "out of paper");
      expect_to_end_the_group(
          **other, run, []() -> Result<Call> { throw std::bad_alloc(); },
          "there is no memory for what goes into");
    }
  }));
}

TEST(WorldOfProcesses, AMemberThatDiesBeforeItsGroupIsMadeIsNamed) {
  Survivors survivors;
  const Status status = ProcessWorld{3}.run([&survivors](const SpawnedRank& rank) {
    Survivors::stay();
    const auto world = join_on_two_hosts(rank, 2);
    ASSERT_TRUE(world);
    ASSERT_OK(barrier(world->group()));
    if (rank.rank.value == 1) ::kill(::getpid(), SIGKILL);
    if (rank.rank.value == 0) {
      const Status died = world->new_group({Rank{0}, Rank{1}}).status();
      EXPECT_THAT(died, StatusIs(Code::kDisconnected, HasSubstr("rank 1 died")));
    } else {
      EXPECT_EQ(world->split(world->group(), {.color = 1}).status().failure(), Failure::kPeerDied);
    }
    if (!::testing::Test::HasFailure()) survivors.add();
  });
  EXPECT_EQ(survivors.count(), 2) << status.text();
}

TEST(WorldOfProcesses, ARankThatDiesIsNamedByAllOthers) {
  Survivors survivors;
  const Status status = ProcessWorld{4}.run([&survivors](const SpawnedRank& rank) {
    Survivors::stay();
    const auto world = join(rank);
    ASSERT_TRUE(world);
    ASSERT_OK(barrier(world->group()));
    if (rank.rank.value == 2) ::kill(::getpid(), SIGKILL);
    std::vector<float> data(1 << 20);
    const Status died = all_reduce(world->group(), std::span(data));
    EXPECT_THAT(died, StatusIs(Code::kDisconnected, HasSubstr("rank 2 died")));
    EXPECT_EQ(died.failure(), Failure::kPeerDied);
    EXPECT_EQ(died.cause().peer, Rank{2});
    EXPECT_EQ(died.cause().sequence, 2U);
    EXPECT_EQ(world->group().failure().failure(), Failure::kPeerDied);
    // The others go on without it.
    auto rest = world->new_group({Rank{0}, Rank{1}, Rank{3}});
    ASSERT_OK(rest.status());
    std::vector<int> ones{1};
    ASSERT_OK(all_reduce(**rest, std::span(ones)));
    EXPECT_EQ(ones[0], 3);
    if (!::testing::Test::HasFailure()) survivors.add();
  });
  EXPECT_THAT(status, StatusIs(Code::kDisconnected, HasSubstr("SIGKILL")));
  EXPECT_EQ(survivors.count(), 3);
}

TEST(WorldOfProcesses, OfRanksThatDieAtOnceTheFirstIsNamedAndAllAreListed) {
  Survivors survivors;
  const Status status = ProcessWorld{4}.run([&survivors](const SpawnedRank& rank) {
    Survivors::stay();
    const auto world = join_on_two_hosts(rank, 2);
    ASSERT_TRUE(world);
    ASSERT_OK(world->rendezvous().store->barrier("all are here", WorldSize{4}));
    if (rank.rank.value % 2 == 1) ::kill(::getpid(), SIGKILL);
    Status died = world->group().monitored_barrier();
    EXPECT_EQ(died.failure(), Failure::kPeerDied) << died.text();
    EXPECT_THAT(died.cause().peer, ::testing::AnyOf(Rank{1}, Rank{3}));
    EXPECT_THAT(died.cause().missing, ::testing::Contains(*died.cause().peer));
    const Deadline limit = Clock::steady().in(60s);
    while (died.cause().missing.size() < 2 && !limit.expired()) died = world->group().failure();
    EXPECT_THAT(died.cause().missing, ElementsAre(Rank{1}, Rank{3}));
    if (!::testing::Test::HasFailure()) survivors.add();
  });
  EXPECT_EQ(survivors.count(), 2) << status.text();
}

TEST(WorldOfProcesses, ARankThatDiesWhileTheWorldIsMadeIsNamed) {
  Survivors survivors;
  const Status status = ProcessWorld{3}.run([&survivors](const SpawnedRank& rank) {
    Survivors::stay();
    if (rank.rank.value == 1) {
      const auto met = store::rendezvous({}, rank.environment);
      ::kill(::getpid(), SIGKILL);
    }
    const auto world = World::join({}, rank.environment);
    EXPECT_THAT(world.status(), StatusIs(Code::kDisconnected, HasSubstr("rank 1 died")));
    EXPECT_EQ(world.status().cause().peer, Rank{1});
    if (!::testing::Test::HasFailure()) survivors.add();
  });
  EXPECT_EQ(survivors.count(), 2) << status.text();
}

TEST(World, ARankThatLeavesEarlyIsSaidToHaveLeft) {
  EXPECT_OK(run_ranks(3, [](const SpawnedRank& rank) {
    auto world = join(rank);
    ASSERT_TRUE(world);
    ASSERT_OK(barrier(world->group()));
    if (rank.rank.value == 1) return;
    const Status left = barrier(world->group(), {.deadline = Clock::steady().in(60s)});
    EXPECT_EQ(left.failure(), Failure::kDesync);
    EXPECT_THAT(left, StatusIs(Code::kDisconnected, HasSubstr("rank 1 left the group after operation #1")));
  }));
}

TEST(World, ATimeoutNamesWhoIsMissingOnEveryRank) {
  EXPECT_OK(run_ranks(3, [](const SpawnedRank& rank) {
    const auto world = join(rank);
    ASSERT_TRUE(world);
    store::Store& store = *world->rendezvous().store;
    if (rank.rank.value == 1) {
      ASSERT_OK(store.barrier("all have seen it", WorldSize{3}));
      return;
    }
    ASSERT_OK(store.barrier("both are here", WorldSize{2}));
    const Status late = barrier(world->group(), {.deadline = Clock::steady().in(kTogether)});
    EXPECT_THAT(late, StatusIs(Code::kTimeout, ContainsRegex("waited [0-9.]+ m?s for rank 1")));
    EXPECT_THAT(late.cause().missing, ElementsAre(Rank{1}));
    ASSERT_OK(store.barrier("all have seen it", WorldSize{3}));
  }));
}

TEST(World, AMonitoredBarrierThatTimesOutEndsTheGroupForAll) {
  for (const int first : {2, 3}) {
    EXPECT_OK(run_ranks(3, [first](const SpawnedRank& rank) {
      const auto world = join_on_two_hosts(rank, first);
      ASSERT_TRUE(world);
      store::Store& store = *world->rendezvous().store;
      Status heard;
      if (rank.rank.value == 1) {
        ASSERT_OK(store.barrier("the others have given up", WorldSize{3}));
        heard = world->group().monitored_barrier();  // though they had come
      } else {
        // One of them has less time: it decides.
        const Duration limit = rank.rank.value == 0 ? 100ms : 60s;
        heard = world->group().monitored_barrier({.deadline = Clock::steady().in(limit)});
        ASSERT_OK(store.barrier("the others have given up", WorldSize{3}));
      }
      for (const Status& status : {heard, world->group().failure(), barrier(world->group())}) {
        EXPECT_THAT(status, StatusIs(Code::kTimeout, HasSubstr("rank 0: monitored_barrier #1 of \"world\"")));
        EXPECT_EQ(status.failure(), Failure::kMissingRanks);
        EXPECT_THAT(status.cause().missing, ::testing::Contains(Rank{1}));
      }
      ASSERT_OK(store.barrier("all have seen it", WorldSize{3}));
      // Those that are there go on.
      const auto group = world->shrink();
      ASSERT_OK(group.status());
      EXPECT_OK((*group)->monitored_barrier());
    }));
  }
}

TEST(World, AMonitoredBarrierNamesAllWhoAreMissingOnEveryRankThatCame) {
  for (const int first : {2, 4}) {
    EXPECT_OK(run_ranks(4, [first](const SpawnedRank& rank) {
      const auto world = join_on_two_hosts(rank, first);
      ASSERT_TRUE(world);
      ASSERT_OK(barrier(world->group()));
      store::Store& store = *world->rendezvous().store;
      if (rank.rank.value % 2 == 0) {  // of each host one comes
        ASSERT_OK(store.barrier("those that come are here", WorldSize{2}));
        const Status late = world->group().monitored_barrier({.deadline = Clock::steady().in(kTogether)});
        EXPECT_THAT(late, StatusIs(Code::kTimeout, HasSubstr("rank 1, 3 did not come")));
        EXPECT_EQ(late.failure(), Failure::kMissingRanks);
        EXPECT_THAT(late.cause().missing, ElementsAre(Rank{1}, Rank{3}));
        EXPECT_EQ(world->group().failure().text(), late.text());
      }
      ASSERT_OK(store.barrier("all have heard it", WorldSize{4}));
    }));
  }
}

// Rank 0 waits for 1 or 2, which waits for 3: none of these is missing.
TEST(World, ATimeoutBetweenHostsNamesWhoIsInNoOperation) {
  EXPECT_OK(run_ranks(4, [](const SpawnedRank& rank) {
    const auto world = join_on_two_hosts(rank, 2);
    ASSERT_TRUE(world);
    ASSERT_OK(barrier(world->group()));
    store::Store& store = *world->rendezvous().store;
    if (rank.rank.value != 3) {
      std::vector<float> data(1000);
      const Status late = all_reduce(world->group(), std::span(data), ReduceOp::kSum,
                                     {.deadline = Clock::steady().in(kTogether)});
      EXPECT_THAT(late, StatusIs(Code::kTimeout, ContainsRegex("waited [0-9.]+ m?s for rank 3")));
      EXPECT_THAT(late.cause().missing, ElementsAre(Rank{3}));
    }
    ASSERT_OK(store.barrier("all have seen it", WorldSize{4}));
  }));
}

// Before there is a link to say it on.
TEST(World, ARankThatLeavesAtOnceIsSaidToHaveLeft) {
  for (const int leaver : {0, 1, 3}) {
    EXPECT_OK(run_ranks(4, [leaver](const SpawnedRank& rank) {
      const auto world = join_on_two_hosts(rank, 1);
      ASSERT_TRUE(world);
      if (rank.rank.value == leaver) return;
      const Status left = barrier(world->group(), {.deadline = Clock::steady().in(60s)});
      EXPECT_EQ(left.failure(), Failure::kDesync) << left.text();
      EXPECT_EQ(left.cause().peer, Rank{leaver}) << left.text();
    }));
  }
}

TEST(World, AnAbortIsHeardByEveryRank) {
  EXPECT_OK(run_ranks(3, [](const SpawnedRank& rank) {
    const auto world = join(rank);
    ASSERT_TRUE(world);
    if (rank.rank.value == 0) {
      world->group().abort(Status::aborted("the user's hook threw", {.failure = Failure::kRemoteError}));
      return;
    }
    const Status heard = barrier(world->group());
    EXPECT_THAT(heard, StatusIs(Code::kAborted, HasSubstr("rank 0 said: the user's hook threw")));
    EXPECT_EQ(heard.cause().peer, Rank{0});
  }));
}

TEST(WorldOfProcesses, APendingReceiveEndsWithItsGroup) {
  Survivors survivors;
  const Status status = ProcessWorld{3}.run([&survivors](const SpawnedRank& rank) {
    Survivors::stay();
    const auto world = join_on_two_hosts(rank, 2);
    ASSERT_TRUE(world);
    ASSERT_OK(barrier(world->group()));
    if (rank.rank.value == 1) ::kill(::getpid(), SIGKILL);
    std::vector<float> data(10);
    EXPECT_EQ(world->group().recv(Rank{rank.rank.value == 0 ? 2 : 0}, 1, bytes_of(data))->wait().failure(),
              Failure::kPeerDied);
    if (!::testing::Test::HasFailure()) survivors.add();
  });
  EXPECT_EQ(survivors.count(), 2) << status.text();
}

// Rank `victim` gets the signal before the first operation; all others name it.
void expect_all_name(int victim, int first, int signal, Failure on_its_host, Failure on_the_other) {
  Survivors survivors;
  const Status status = ProcessWorld{4}.run([&](const SpawnedRank& rank) {
    Survivors::stay();
    const auto world =
        join_on_two_hosts(rank, first, {.stall_after = signal == SIGSTOP ? kSoonStalled : kNeverStalled});
    ASSERT_TRUE(world);
    store::Store& store = *world->rendezvous().store;
    ASSERT_OK(store.set(cat("joined/", rank.rank), {}));
    if (rank.rank.value == victim) {
      ASSERT_OK(store.wait(std::vector<std::string>{"joined/0", "joined/1", "joined/2", "joined/3"}));
      ::kill(::getpid(), signal);
    }
    std::vector<float> data(1 << 18);
    Status lost;
    for (int i = 0; i < 1000 && lost.ok(); ++i) lost = all_reduce(world->group(), std::span(data));
    EXPECT_EQ(lost.cause().peer, Rank{victim}) << lost.text();
    EXPECT_TRUE(lost.cause().sequence.has_value()) << lost.text();
    EXPECT_THAT(lost.failure(), ::testing::AnyOf(on_its_host, on_the_other)) << lost.text();
    if (::testing::Test::HasFailure()) return;
    survivors.add();
    // The last one ends it, so that the world can end.
    if (survivors.count() == 3)
      ::kill(world->rendezvous().members[static_cast<std::size_t>(victim)].pid, SIGKILL);
  });
  EXPECT_THAT(status, StatusIs(Code::kDisconnected, HasSubstr("SIGKILL")));
  EXPECT_EQ(survivors.count(), 3);
}

TEST(WorldOfProcesses, ADeathOnAnotherHostIsNamedByAllOthers) {
  expect_all_name(2, 2, SIGKILL, Failure::kPeerDied, Failure::kPeerDied);  // a speaker
  expect_all_name(3, 2, SIGKILL, Failure::kPeerDied, Failure::kPeerDied);
  expect_all_name(0, 1, SIGKILL, Failure::kPeerDied,
                  Failure::kPeerDied);  // the only one there, which connects
}

TEST(WorldOfProcesses, ARankThatIsStoppedIsNamedByAllOthers) {
  expect_all_name(3, 2, SIGSTOP, Failure::kPeerStalled, Failure::kPeerStalled);
  expect_all_name(2, 2, SIGSTOP, Failure::kPeerStalled, Failure::kPeerUnreachable);
  expect_all_name(3, 3, SIGSTOP, Failure::kPeerUnreachable, Failure::kPeerUnreachable);
}

TEST(World, AnOperationThatItsCallerWaitsForKeepsItsDeadlineBehindAnAsynchronousOne) {
  for (const bool monitored : {false, true}) {
    for (const int first : {1, 2}) {
      EXPECT_OK(run_ranks(2, [monitored, first](const SpawnedRank& rank) {
        const auto world = join_on_two_hosts(rank, first);
        ASSERT_TRUE(world);
        store::Store& store = *world->rendezvous().store;
        ASSERT_OK(barrier(world->group()));
        if (rank.rank.value == 0) {
          std::vector<float> data(1000);
          const ByteSpan bytes = std::as_writable_bytes(std::span(data));
          const WorkPtr before = world->group().start(
              Call{.kind = OpKind::kAllReduce, .dtype = DType::kFloat32, .outputs = {&bytes, 1}});
          const OpOptions soon{.deadline = Clock::steady().in(500ms)};
          const Status late =
              monitored ? world->group().monitored_barrier(soon) : barrier(world->group(), soon);
          EXPECT_THAT(late, StatusIs(Code::kTimeout,
                                     HasSubstr("#3 could not begin until its deadline: all_reduce #2")));
          if (first == 2) {
            EXPECT_THAT(late.cause().missing, ElementsAre(Rank{1}));
          }
          EXPECT_THAT(before->wait(), StatusIs(Code::kTimeout, HasSubstr("could not begin")));
        }
        ASSERT_OK(store.barrier("it is late", WorldSize{2}));
        EXPECT_THAT(barrier(world->group()), StatusIs(Code::kTimeout, HasSubstr("could not begin")));
      }));
    }
  }
}

// Rank 0, which serves the store, is stopped: the others' barrier with two seconds of time ends soon after
// them, long before anybody is taken for stopped.
Status barrier_with_a_stopped_store(int first) {
  Survivors survivors;
  const Status status = ProcessWorld{3}.run([&](const SpawnedRank& rank) {
    Survivors::stay();
    const auto world = join_on_two_hosts(rank, first);
    ASSERT_TRUE(world);
    ASSERT_OK(barrier(world->group()));
    if (rank.rank.value == 0) ::kill(::getpid(), SIGSTOP);
    const base::TimePoint start = Clock::steady().now();
    const Status late = world->group().monitored_barrier({.deadline = Clock::steady().in(kTogether)});
    EXPECT_LT(Clock::steady().now() - start, 20s);
    if (first > 1) {
      EXPECT_THAT(late, StatusIs(Code::kTimeout, HasSubstr("rank 0 did not come")));
      EXPECT_THAT(late.cause().missing, ElementsAre(Rank{0}));
    } else {
      EXPECT_EQ(late.failure(), Failure::kStoreLost) << late.text();  // who is on another host is not known
    }
    if (!::testing::Test::HasFailure()) survivors.add();
    if (rank.rank.value == 0) return;
    // The last one ends it, so that the world can end.
    if (survivors.count() == 2) ::kill(world->rendezvous().members[0].pid, SIGKILL);
  });
  EXPECT_EQ(survivors.count(), 2);
  return status;
}

TEST(WorldOfProcesses, AMonitoredBarrierEndsInTimeThoughTheRankThatServesTheStoreIsStopped) {
  for (const int first : {3, 1}) {
    EXPECT_THAT(barrier_with_a_stopped_store(first), StatusIs(Code::kDisconnected, HasSubstr("SIGKILL")));
  }
}

TEST(WorldOfProcesses, ARankThatIsStoppedForAShortWhileIsNotLost) {
  EXPECT_OK(ProcessWorld{3}.run([](const SpawnedRank& rank) {
    const auto world = join_on_two_hosts(rank, 2, {.stall_after = 10s});
    ASSERT_TRUE(world);
    ASSERT_OK(barrier(world->group()));
    if (rank.rank.value != 1) {
      auto others = world->new_group({Rank{0}, Rank{2}});
      ASSERT_OK(others.status());
      const int pid = world->rendezvous().members[1].pid;
      if (rank.rank.value == 0) ::kill(pid, SIGSTOP);
      // They work for a while: for some looks of their monitors, and much less than it may take.
      const Deadline while_it_stands = Clock::steady().in(300ms);
      for (std::vector<int> more = {1}; more[0] != 0;) {
        more[0] = while_it_stands.expired() ? 0 : 1;
        ASSERT_OK(broadcast(**others, std::span(more), Rank{0}));
      }
      if (rank.rank.value == 0) ::kill(pid, SIGCONT);
    }
    ASSERT_OK(barrier(world->group()));
  }));
}

}  // namespace
}  // namespace lockstep::backend
