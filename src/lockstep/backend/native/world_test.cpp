// Worlds of real processes that work as they should.
#include "lockstep/backend/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <thread>
#include <vector>

#include "lockstep/backend/counting.h"
#include "lockstep/backend/native/facilities.h"
#include "lockstep/backend/native/straggler_watch.h"
#include "lockstep/backend/native/world_test_support.h"
#include "lockstep/backend/operations.h"
#include "lockstep/base/process.h"
#include "lockstep/base/topology.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::backend {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::StatusIs;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(World, OfOneNeedsNobody) {
  auto world = World::join({}, Environment{});
  ASSERT_OK(world.status());
  std::vector<float> data{1, 2, 3};
  EXPECT_OK(all_reduce((*world)->group(), std::span(data)));
  EXPECT_THAT(data, ElementsAre(1, 2, 3));
  EXPECT_OK(barrier((*world)->group()));
  EXPECT_OK((*world)->group().monitored_barrier());
  EXPECT_EQ((*world)->group().timeout(), 30min);
  EXPECT_EQ((*world)->rendezvous().store->timeout(), 300s);
  std::vector<float> copy(3);
  EXPECT_OK(all_gather((*world)->group(), std::span<const float>(data), std::span(copy)));
  EXPECT_THAT(copy, ElementsAre(1, 2, 3));
}

TEST(World, OptionsThatCannotBeWorkedWithAreRefusedOnEveryRank) {
  EXPECT_THAT(World::join({.streams = 0}, Environment{}).status(),
              StatusIs(Code::kInvalid, HasSubstr("streams is 0")));
  EXPECT_OK(run_ranks(2, [](const SpawnedRank& rank) {
    const auto world = World::join(options_of(rank, {.staging = Bytes{1000}}), rank.environment);
    EXPECT_THAT(world.status(), StatusIs(Code::kInvalid, HasSubstr("staging is 1000")));
  }));
}

// The memory is there, and the address space for it is not.
TEST(WorldOfProcesses, HeapsThatCannotBeMappedAreDoneWithoutIfItIsAllowed) {
  static constexpr Bytes kTooMuch{std::uint64_t{1} << 47U};
  EXPECT_OK(lockstep::testing::ProcessWorld{2}.run([](const SpawnedRank& rank) {
    const auto world = World::join({.heap_capacity = kTooMuch}, rank.environment);
    EXPECT_THAT(world.status(), StatusIs(Code::kUnsupported, HasSubstr("2 times 128.0 TiB, which is "
                                                                       "WorldOptions::heap_capacity")));
    EXPECT_EQ(world.status().failure(), Failure::kNoSpace);
  }));
  EXPECT_OK(lockstep::testing::ProcessWorld{2}.run([](const SpawnedRank& rank) {
    const auto world = join(rank, {.stall_after = kNeverStalled,
                                   .without_shared_memory = WithoutSharedMemory::kUseTcp,
                                   .heap_capacity = kTooMuch});
    ASSERT_TRUE(world);
    EXPECT_OK(world->allocate(Bytes::mib(1)).status());
    std::vector<float> data(1000, 1);
    ASSERT_OK(all_reduce(world->group(), std::span(data)));
    EXPECT_TRUE(all_are(data, 2));
  }));
}

std::ptrdiff_t entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}

TEST(World, OfOneCostsNothingUntilItSendsAMessage) {
  const auto threads = entries("/proc/self/task");
  const auto descriptors = entries("/proc/self/fd");
  {
    auto world = World::join({}, Environment{});
    ASSERT_OK(world.status());
    EXPECT_OK(barrier((*world)->group()));
    EXPECT_EQ(entries("/proc/self/task"), threads);
    EXPECT_EQ(entries("/proc/self/fd"), descriptors);
    // To oneself, in either order.
    std::vector<int> in{0};
    std::vector<int> out{7};
    const WorkPtr received = (*world)->group().recv({}, 3, bytes_of(in));
    EXPECT_OK((*world)->group().send(Rank{0}, 3, bytes_of(out))->wait());
    EXPECT_OK(received->wait());
    EXPECT_EQ(in[0], 7);
  }
  EXPECT_EQ(entries("/proc/self/fd"), descriptors);
}

TEST(World, OfOneThatWasAbortedSendsNoMessage) {
  auto world = World::join({}, Environment{});
  ASSERT_OK(world.status());
  (*world)->group().abort(Status::aborted("enough"));
  std::vector<int> number{1};
  EXPECT_THAT((*world)->group().send(Rank{0}, 3, bytes_of(number))->wait(),
              StatusIs(Code::kAborted, HasSubstr("enough")));
  EXPECT_THAT((*world)->group().failure(), StatusIs(Code::kAborted, HasSubstr("enough")));
}

TEST(World, CountsWhomARankHasWaitedFor) {
  EXPECT_OK(run_ranks(2, [](const SpawnedRank& rank) {
    const auto world = join(rank, {.stall_after = kNeverStalled});
    Backend& group = world->group();
    const auto* const counting = dynamic_cast<const Counting*>(&group);
    ASSERT_NE(counting, nullptr);
    std::vector<int> done{0};
    const Deadline limit = Clock::steady().in(60s);
    for (Duration late = 5ms; done[0] == 0 && !limit.expired(); late = std::min<Duration>(2 * late, 2s)) {
      // Rank 1 comes later, until rank 0 sleeps: on a busy machine it gives its processor away before.
      const Deadline later = Clock::steady().in(rank.rank == Rank{1} ? late : Duration::zero());
      while (!later.expired()) std::this_thread::yield();
      ASSERT_OK(barrier(group));
      const auto waits = counting->counters().waits;
      if (rank.rank == Rank{0}) done[0] = waits.contains(Rank{1}) ? 1 : 0;
      ASSERT_OK(broadcast(group, std::span(done), Rank{0}));
    }
    if (rank.rank != Rank{0}) return;
    const auto waits = counting->counters().waits;
    ASSERT_TRUE(waits.contains(Rank{1}));
    EXPECT_GE(waits.at(Rank{1}).operations, 1U);
    EXPECT_GE(waits.at(Rank{1}).lost, 1ms);
    EXPECT_FALSE(waits.contains(Rank{0}));
  }));
}

// Each of three ranks is alone on its host, and one of them is slow; those that wait for each other because
// of it are not.
TEST(World, NamesTheSlowRankOfManyHosts) {
  for (int slow = 0; slow < 3; ++slow) {
    ::testing::internal::CaptureStderr();
    const Status ran = run_ranks(3, [slow](const SpawnedRank& rank) {
      const auto world = join_on_hosts(rank, [](Rank other) { return other.value; });
      ASSERT_TRUE(world);
      std::vector<float> data(100'000);
      for (int step = 0; step < 2 * static_cast<int>(StragglerWatch::kWindow); ++step) {
        if (rank.rank.value == slow) std::this_thread::sleep_for(20ms);
        ASSERT_OK(all_reduce(world->group(), std::span(data).first(step % 2 == 0 ? 1 : data.size())));
      }
    });
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_OK(ran) << said;
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_EQ(said.find(cat("rank ", rank, " is slow")) != std::string::npos, rank == slow) << said;
  }
}

TEST(World, ReducesOnEveryRank) {
  for (const int size : {2, 3, 8}) {
    EXPECT_OK(run_ranks(size, [size](const SpawnedRank& rank) {
      const auto world = join(rank);
      ASSERT_TRUE(world);
      for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{1} << 20}) {
        std::vector<float> data(count, static_cast<float>(rank.rank.value + 1));
        ASSERT_OK(all_reduce(world->group(), std::span(data)));
        ASSERT_TRUE(all_are(data, static_cast<float>(size) * static_cast<float>(size + 1) / 2));
        auto memory = world->allocate(Bytes{count * sizeof(float)});
        ASSERT_OK(memory.status());
        const std::span shared(reinterpret_cast<float*>(memory->bytes.data()), count);
        std::fill(shared.begin(), shared.end(), static_cast<float>(rank.rank.value));
        ASSERT_OK(all_reduce(world->group(), shared, ReduceOp::kMax));
        ASSERT_TRUE(all_are(shared, static_cast<float>(size - 1)));
      }
    }));
  }
}

// Each saw one core, and as many ranks as the host has.
TEST(WorldOfProcesses, RanksThatAreBoundToCoresOfTheirOwnSpin) {
  EXPECT_OK(lockstep::testing::ProcessWorld{2}.run([](const SpawnedRank& rank) {
    const std::vector<int> cpus = base::allowed_cpus();
    ASSERT_OK(base::bind_this_thread({cpus[static_cast<std::size_t>(rank.rank.value) % cpus.size()]}));
    auto rendezvous = store::rendezvous({}, rank.environment);
    ASSERT_OK(rendezvous.status());
    const auto facilities =
        std::make_shared<Facilities>(WorldOptions{.stall_after = kNeverStalled}, std::move(*rendezvous),
                                     Clock::steady(), transport::link::SocketCalls::kernel());
    ASSERT_OK(facilities->set_up());
    EXPECT_EQ(facilities->patience().spin > Duration::zero(), cpus.size() > 1);
    facilities->close();
  }));
}

TEST(World, MonitoredBarriersLeaveNoMoreKeysInTheStoreThanOneDoes) {
  EXPECT_OK(run_ranks(3, [](const SpawnedRank& rank) {
    const auto world = join(rank);
    ASSERT_TRUE(world);
    ASSERT_OK(world->group().monitored_barrier());
    store::Store& store = *world->rendezvous().store;
    const auto keys = [&] {
      EXPECT_OK(barrier(world->group()));
      const auto count = store.num_keys();
      EXPECT_OK(barrier(world->group()));
      return count.ok() ? *count : -1;
    };
    const auto after_one = keys();
    for (int i = 0; i < 5; ++i) ASSERT_OK(world->group().monitored_barrier());
    EXPECT_EQ(keys(), after_one);
  }));
}

TEST(World, GroupsAreMadeByTheirMembersAlone) {
  EXPECT_OK(run_ranks(5, [](const SpawnedRank& rank) {
    const auto world = join(rank);
    ASSERT_TRUE(world);
    const bool even = rank.rank.value % 2 == 0;
    const std::vector<Rank> members =
        even ? std::vector{Rank{4}, Rank{0}, Rank{2}} : std::vector{Rank{1}, Rank{3}};
    auto group = world->new_group(members);
    ASSERT_OK(group.status());
    EXPECT_EQ((*group)->size().value, even ? 3 : 2);
    EXPECT_EQ((*group)->world_rank((*group)->rank()), rank.rank);
    std::vector<int> data{rank.rank.value};
    ASSERT_OK(all_reduce(**group, std::span(data)));
    EXPECT_THAT(data, ElementsAre(even ? 6 : 4));
    // Its root is a rank in the group: 4 is rank 0 of the even ones.
    ASSERT_OK(broadcast(**group, std::span(data), Rank{0}));
    auto again = world->new_group(members);
    ASSERT_OK(again.status());
    ASSERT_OK(barrier(**again));
    EXPECT_THAT(world->new_group({Rank{(rank.rank.value + 1) % 5}}).status(),
                StatusIs(Code::kInvalid, HasSubstr("not a member")));
  }));
}

TEST(World, IsSplitByColourAndKey) {
  EXPECT_OK(run_ranks(5, [](const SpawnedRank& rank) {
    const auto world = join_on_two_hosts(rank, 2);
    ASSERT_TRUE(world);
    const int own = rank.rank.value;
    // 4, 2, 0 and 1; rank 3 wants none.
    const SplitBy by{.color = own == 3 ? std::nullopt : std::optional(own % 2), .key = -own};
    auto group = world->split(world->group(), by);
    ASSERT_OK(group.status());
    if (own == 3) {
      EXPECT_EQ(*group, nullptr);
    } else {
      EXPECT_EQ((*group)->size().value, own == 1 ? 1 : 3);
      EXPECT_EQ((*group)->rank().value, own == 1 ? 0 : 2 - own / 2);
      EXPECT_EQ((*group)->world_rank((*group)->rank()), rank.rank);
      std::vector<int> data{own};
      ASSERT_OK(all_reduce(**group, std::span(data)));
      EXPECT_EQ(data[0], own == 1 ? 1 : 6);
      // Ranks with equal keys keep the order that they have in the group that is split.
      auto again = world->split(**group, {.color = 7});
      ASSERT_OK(again.status());
      EXPECT_EQ((*again)->rank(), (*group)->rank());
      ASSERT_OK(barrier(**again));
    }
    ASSERT_OK(barrier(world->group()));
  }));
}

TEST(World, AsynchronousOperationsRunInOrderAndKeepTheirBytes) {
  EXPECT_OK(run_ranks(3, [](const SpawnedRank& rank) {
    const auto world = join(rank);
    ASSERT_TRUE(world);
    std::vector<WorkPtr> works;
    std::vector<std::shared_ptr<std::vector<float>>> buffers;
    for (int i = 0; i < 20; ++i) {
      buffers.push_back(std::make_shared<std::vector<float>>(1000, 1.F));
      const ByteSpan bytes = bytes_of(*buffers.back());
      works.push_back(
          world->group().start({.kind = OpKind::kAllReduce, .dtype = DType::kFloat32, .outputs = {&bytes, 1}},
                               {.keep = buffers.back()}));
    }
    std::vector<float> last{1};
    ASSERT_OK(all_reduce(world->group(), std::span(last)));
    for (const WorkPtr& work : works) EXPECT_TRUE(work->is_success());
    for (const auto& buffer : buffers) EXPECT_THAT(*buffer, Each(3.F));
    EXPECT_EQ(world->group().sequence(), 21U);
    EXPECT_THAT(buffers, Each(::testing::Property(&std::shared_ptr<std::vector<float>>::use_count, 1)));
  }));
}

TEST(World, MessagesFindTheirReceiverInAnyOrder) {
  EXPECT_OK(run_ranks(3, [](const SpawnedRank& rank) {
    const auto world = join_on_two_hosts(rank, 2);
    ASSERT_TRUE(world);
    Backend& group = world->group();
    const int n = 3;
    const auto size = [](int from, int to) { return static_cast<std::size_t>(from * 70'000 + to * 3 + 1); };
    std::vector<std::vector<float>> in(n);
    std::vector<std::vector<float>> out(n);
    std::vector<WorkPtr> works;
    // Receives first on every rank, across a barrier, and to oneself.
    for (int peer = 0; peer < n; ++peer) {
      auto& buffer = in[static_cast<std::size_t>(peer)];
      buffer.resize(size(peer, rank.rank.value));
      works.push_back(group.recv(Rank{peer}, 7, bytes_of(buffer)));
    }
    ASSERT_OK(barrier(group));
    for (int peer = 0; peer < n; ++peer) {
      auto& buffer = out[static_cast<std::size_t>(peer)];
      buffer.assign(size(rank.rank.value, peer), static_cast<float>(rank.rank.value + 1));
      works.push_back(group.send(Rank{peer}, 7, bytes_of(buffer)));
    }
    for (const WorkPtr& work : works) ASSERT_OK(work->wait());
    for (int peer = 0; peer < n; ++peer) {
      EXPECT_EQ(works[static_cast<std::size_t>(peer)]->source(), Rank{peer});
      EXPECT_TRUE(all_are(in[static_cast<std::size_t>(peer)], static_cast<float>(peer + 1)));
    }
    // From whoever comes first.
    std::vector<int> number{rank.rank.value};
    if (rank.rank.value != 0) {
      ASSERT_OK(group.send(Rank{0}, 9, bytes_of(number))->wait());
    } else {
      for (int i = 0; i < 2; ++i) {
        const WorkPtr work = group.recv({}, 9, bytes_of(number));
        ASSERT_OK(work->wait());
        EXPECT_EQ(work->source(), Rank{number[0]});
      }
    }
    EXPECT_THAT(group.send(Rank{3}, 0, {})->wait(), StatusIs(Code::kInvalid, HasSubstr("rank 3")));
    ASSERT_OK(barrier(group));
  }));
}

TEST(World, SpansHosts) {
  for (const int first : {1, 2, 3}) {
    EXPECT_OK(run_ranks(5, [first](const SpawnedRank& rank) {
      const auto world = join_on_two_hosts(rank, first);
      ASSERT_TRUE(world);
      for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{1} << 20}) {
        std::vector<float> data(count, static_cast<float>(rank.rank.value + 1));
        ASSERT_OK(all_reduce(world->group(), std::span(data)));
        ASSERT_TRUE(all_are(data, 15));
      }
      auto ends =
          rank.rank.value % 4 == 0 ? world->new_group({Rank{0}, Rank{4}}) : world->new_group({rank.rank});
      ASSERT_OK(ends.status());
      std::vector<int> ones{1};
      ASSERT_OK(all_reduce(**ends, std::span(ones)));
      EXPECT_EQ(ones[0], (*ends)->size().value);
    }));
  }
}

TEST(World, CanConnectAtStart) {
  EXPECT_OK(run_ranks(4, [](const SpawnedRank& rank) {
    const auto world = join_on_two_hosts(
        rank, 1, {.stall_after = kNeverStalled, .connect = Connect::kAtStart, .congestion_control = "reno"});
    ASSERT_TRUE(world);
    std::vector<int> ones{1};
    ASSERT_OK(all_reduce(world->group(), std::span(ones)));
    EXPECT_EQ(ones[0], 4);
  }));
}

TEST(World, SpansHostsByIpv6) {
  EXPECT_OK(run_ranks(3, [](const SpawnedRank& rank) {
    const auto world = join_on_two_hosts(rank, 2, {.stall_after = kNeverStalled}, "::1");
    ASSERT_TRUE(world);
    std::vector<float> data(1 << 18, static_cast<float>(rank.rank.value + 1));
    ASSERT_OK(all_reduce(world->group(), std::span(data)));
    ASSERT_TRUE(all_are(data, 6));
    std::vector<int> number{rank.rank.value};
    if (rank.rank.value == 2) {
      ASSERT_OK(world->group().send(Rank{0}, 1, bytes_of(number))->wait());
    } else if (rank.rank.value == 0) {
      ASSERT_OK(world->group().recv(Rank{2}, 1, bytes_of(number))->wait());
      EXPECT_EQ(number[0], 2);
    }
    ASSERT_OK(barrier(world->group()));
  }));
}

}  // namespace
}  // namespace lockstep::backend
