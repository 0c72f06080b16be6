// World::shrink() on real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "lockstep/backend/native/world_test_support.h"
#include "lockstep/backend/operations.h"
#include "lockstep/base/crypto.h"
#include "lockstep/base/text.h"

namespace lockstep::backend {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::ProcessWorld;
using lockstep::testing::StatusIs;
using ::testing::HasSubstr;

std::vector<int> members_of(const Backend& group) {
  std::vector<int> members;
  for (int i = 0; i < group.size().value; ++i) members.push_back(group.world_rank(Rank{i}).value);
  return members;
}

std::span<float> floats_of(const SharedMemory& memory) {
  return {reinterpret_cast<float*>(memory.bytes.data()), memory.bytes.size() / sizeof(float)};
}

// One rank's part in a world that is shrunk again and again.
class ShrinkingRank {
 public:
  // The first five ranks are on one host, the others on another.
  explicit ShrinkingRank(const SpawnedRank& rank) : rank_(rank.rank), world_(join_on_two_hosts(rank, 5)) {
    for (int i = 0; world_ && i < world_->size().value; ++i) left_.push_back(i);
  }

  World& world() { return *world_; }
  Backend& group() { return group_ ? *group_ : world_->group(); }

  // Everybody has done all before it.
  Status meet() {
    return world_->rendezvous().store->barrier(cat("meeting ", left_.size()),
                                               WorldSize{static_cast<int>(left_.size())});
  }

  // Shrinks until the group works without those that die: one may do so only after all have agreed.
  Status shrink_to(const std::vector<int>& left) {
    left_ = left;
    for (int i = 0; i < 3; ++i) {
      LOCKSTEP_ASSIGN(group_, world_->shrink());
      ++shrinks_;
      Status status = barrier(*group_);
      if (status.ok() && members_of(*group_) == left) return {};
      while (status.ok()) status = barrier(*group_);
      if (status.failure() != Failure::kPeerDied) return status;
    }
    return Status::internal("it does not come to an end");
  }

  // The victims die while all work together; those that are left go on.
  void bear_the_death_of(const std::vector<int>& victims) {
    ASSERT_OK(meet());
    if (std::count(victims.begin(), victims.end(), rank_.value)) ::kill(::getpid(), SIGKILL);
    std::vector<float> data(1 << 18);
    Status died;
    while (died.ok()) died = all_reduce(group(), std::span(data));
    EXPECT_EQ(died.failure(), Failure::kPeerDied) << died.text();
    ASSERT_OK(shrink_to(without(victims)));
  }

  // The victim dies as soon as `key` of the next shrink is in the store.
  void bear_a_death_in_the_shrink(int victim, const std::string& key) {
    SCOPED_TRACE(key);
    ASSERT_OK(meet());
    std::thread killer;
    if (rank_.value == victim) {
      auto store = world_->rendezvous().store->clone();
      ASSERT_OK(store.status());
      killer = std::thread([store = std::move(*store), key = cat("shrink/", shrinks_, "/0/", key)] {
        (void)store->get(key);
        ::kill(::getpid(), SIGKILL);
      });
    }
    const Status shrunk = shrink_to(without({victim}));
    if (killer.joinable()) killer.join();
    ASSERT_OK(shrunk);
  }

 private:
  std::vector<int> without(const std::vector<int>& victims) const {
    std::vector<int> rest;
    std::copy_if(left_.begin(), left_.end(), std::back_inserter(rest),
                 [&](int rank) { return !std::count(victims.begin(), victims.end(), rank); });
    return rest;
  }

  const Rank rank_;
  const std::unique_ptr<World> world_;
  std::unique_ptr<Backend> group_;
  std::vector<int> left_;
  int shrinks_ = 0;
};

TEST(ShrinkOfProcesses, OthersGoOnWithoutTheDeadAndTheirMemoryStays) {
  Survivors survivors;
  const Status status = ProcessWorld{7}.run([&](const SpawnedRank& spawned) {
    Survivors::stay();
    ShrinkingRank rank(spawned);
    auto memory = rank.world().allocate(Bytes::mib(1));
    auto kept = rank.world().allocate(Bytes::kib(64));
    ASSERT_OK(memory.status());
    ASSERT_OK(kept.status());
    const std::span data = floats_of(*memory);
    std::fill(floats_of(*kept).begin(), floats_of(*kept).end(), 42.F);
    auto alone = rank.world().new_group({spawned.rank});
    ASSERT_OK(alone.status());
    // One, then two at once, then the last one of its host.
    for (const std::vector<int>& victims : {std::vector{6}, std::vector{1, 2}, std::vector{5}}) {
      ASSERT_NO_FATAL_FAILURE(rank.bear_the_death_of(victims));
      for (int i = 0; i < 10; ++i) {
        std::fill(data.begin(), data.end(), 1.F);
        ASSERT_OK(all_reduce(rank.group(), data));
        ASSERT_TRUE(all_are(data, static_cast<float>(rank.group().size().value)));
      }
      EXPECT_TRUE(all_are(floats_of(*kept), 42.F));
    }
    // Earlier groups have ended; new ones can be made, but not with those that are out.
    EXPECT_EQ(rank.world().group().failure().failure(), Failure::kPeerDied);
    EXPECT_THAT(barrier(**alone), StatusIs(Code::kAborted, HasSubstr("shrinks the world")));
    auto halves = rank.world().split(rank.group(), {.color = rank.group().rank().value % 2});
    ASSERT_OK(halves.status());
    ASSERT_OK(barrier(**halves));
    const Status out = rank.world().new_group({spawned.rank, Rank{6}}).status();
    EXPECT_THAT(out, StatusIs(Code::kInvalid, HasSubstr("rank 6 was left out when the world was shrunk")));
    if (!::testing::Test::HasFailure()) survivors.add();
  });
  EXPECT_EQ(survivors.count(), 3) << status.text();
}

TEST(ShrinkOfProcesses, ARankMayDieMeanwhile) {
  Survivors survivors;
  const Status status = ProcessWorld{8}.run([&](const SpawnedRank& spawned) {
    Survivors::stay();
    ShrinkingRank rank(spawned);
    ASSERT_NO_FATAL_FAILURE(rank.bear_a_death_in_the_shrink(1, "here/1"));
    ASSERT_NO_FATAL_FAILURE(rank.bear_a_death_in_the_shrink(2, "decision"));
    ASSERT_NO_FATAL_FAILURE(rank.bear_a_death_in_the_shrink(7, "heap/7"));
    ASSERT_NO_FATAL_FAILURE(rank.bear_a_death_in_the_shrink(3, "heap/0"));
    ASSERT_NO_FATAL_FAILURE(rank.bear_a_death_in_the_shrink(6, "done/6"));
    ASSERT_NO_FATAL_FAILURE(rank.bear_a_death_in_the_shrink(4, "verdict"));
    if (!::testing::Test::HasFailure()) survivors.add();
  });
  EXPECT_EQ(survivors.count(), 2) << status.text();
}

TEST(ShrinkOfProcesses, WithoutItsStoreIsATypedError) {
  Survivors survivors;
  const Status status = ProcessWorld{3}.run([&](const SpawnedRank& rank) {
    Survivors::stay();
    const auto world = join(rank);
    ASSERT_TRUE(world);
    ASSERT_OK(barrier(world->group()));
    if (rank.rank.value == 0) ::kill(::getpid(), SIGKILL);  // it serves the store
    EXPECT_EQ(barrier(world->group()).failure(), Failure::kPeerDied);
    EXPECT_EQ(world->shrink().status().failure(), Failure::kStoreLost);
    if (!::testing::Test::HasFailure()) survivors.add();
  });
  EXPECT_EQ(survivors.count(), 2) << status.text();
}

// Rank 0, which serves the store, stops here; the others stay. Nothing if they did not come as far.
std::unique_ptr<World> join_until_store_stops(const SpawnedRank& rank) {
  Survivors::stay();
  auto world = join(rank, {.stall_after = kSoonStalled});
  if (!world) return nullptr;
  const Status met = barrier(world->group());
  EXPECT_OK(met);
  if (!met.ok()) return nullptr;
  if (rank.rank.value == 0) ::kill(::getpid(), SIGSTOP);
  return world;
}

// The last of two survivors ends rank 0, so that the world can end.
void end_stopped_store(World& world, Survivors& survivors) {
  if (!::testing::Test::HasFailure()) survivors.add();
  if (survivors.count() == 2) ::kill(world.rendezvous().members[0].pid, SIGKILL);
}

TEST(ShrinkOfProcesses, EndsInTimeThoughTheRankThatServesTheStoreIsStopped) {
  Survivors survivors;
  const Status status = ProcessWorld{3}.run([&](const SpawnedRank& rank) {
    const auto world = join_until_store_stops(rank);
    ASSERT_TRUE(world);
    EXPECT_EQ(barrier(world->group()).failure(), Failure::kPeerStalled);
    const base::TimePoint start = Clock::steady().now();
    const Status group = world->new_group({Rank{1}, Rank{2}}).status();
    EXPECT_EQ(group.failure(), Failure::kStoreLost) << group.text();
    EXPECT_THAT(group.cause().missing, ::testing::ElementsAre(Rank{0}));
    EXPECT_EQ(world->shrink().status().failure(), Failure::kStoreLost);
    EXPECT_LT(Clock::steady().now() - start, 25s);  // patience alone would be more
    end_stopped_store(*world, survivors);
  });
  EXPECT_EQ(survivors.count(), 2) << status.text();
}

// Its monitor is paused before it could see that itself.
TEST(ShrinkOfProcesses, EndsInTimeThoughOnlyTheGroupSaysWhoIsStopped) {
  Survivors survivors;
  const Status status = ProcessWorld{3}.run([&](const SpawnedRank& rank) {
    const auto world = join_until_store_stops(rank);
    ASSERT_TRUE(world);
    if (rank.rank.value == 1) {
      world->group().abort(
          Status::disconnected("stopped", {.failure = Failure::kPeerStalled, .peer = Rank{0}}));
    }
    EXPECT_EQ(barrier(world->group()).failure(), Failure::kPeerStalled);
    const base::TimePoint start = Clock::steady().now();
    const Status lost = world->shrink().status();
    EXPECT_EQ(lost.failure(), Failure::kStoreLost) << lost.text();
    EXPECT_THAT(lost.cause().missing, ::testing::ElementsAre(Rank{0}));
    EXPECT_LT(Clock::steady().now() - start, 3 * kSoonStalled + 3s);  // patience is more
    end_stopped_store(*world, survivors);
  });
  EXPECT_EQ(survivors.count(), 2) << status.text();
}

// Places for the survivors' results, seen by all processes.
struct Results {
  static constexpr int kRanks = 4;
  char hashes[kRanks][2 * sizeof(base::Digest) + 1];
};

// Stops, or kills, this process when it touches a page, at that very instruction.
class Trap {
 public:
  static void set(void* place, int signal) {
    how = signal;
    page = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(place) / kPage * kPage);
    struct sigaction action {};
    action.sa_handler = [](int) {
      ::kill(::getpid(), how);
      ::mprotect(page, kPage, PROT_READ | PROT_WRITE);
    };
    ASSERT_EQ(::sigaction(SIGSEGV, &action, nullptr), 0);
    ASSERT_EQ(::mprotect(page, kPage, PROT_NONE), 0);
  }

 private:
  static constexpr std::uintptr_t kPage = 4096;
  static inline int how = 0;
  static inline void* page = nullptr;
};

// What the one that was stopped hears when it comes back.
void expect_left_out(World& world, const Status& lost) {
  EXPECT_THAT(std::string(lost.message()), HasSubstr("rank 2 was left out of \"world\"")) << lost.text();
  EXPECT_EQ(lost.failure(), Failure::kLeftOut);
  EXPECT_EQ(world.group().failure().failure(), Failure::kLeftOut);
  const Status group = world.new_group({Rank{0}, Rank{2}}).status();
  EXPECT_EQ(group.failure(), Failure::kLeftOut) << group.text();
  EXPECT_THAT(world.shrink().status(),
              StatusIs(Code::kDisconnected, HasSubstr("was shrunk to rank 0, 1, 3")));
  ASSERT_OK(world.rendezvous().store->set("back", {}));
}

// What those that are left compute in `memory`, as one hash. In the middle of it the one that was stopped, if
// it was, comes back.
std::string hash_of_the_rest(World& world, Backend& group, const SharedMemory& memory, int signal) {
  const std::span data = floats_of(memory);
  const auto own = static_cast<float>(world.rank().value + 1);
  Buffer all;
  for (int i = 0; i < 12; ++i) {
    for (std::size_t at = 0; at < data.size(); ++at)
      data[at] = own / static_cast<float>(at % 1000 + 7) + static_cast<float>(i);
    EXPECT_OK(all_reduce(group, data));
    if (signal == SIGSTOP && i == 4) {
      // Now it writes what it has not written yet.
      if (world.rank().value == 0) ::kill(world.rendezvous().members[2].pid, SIGCONT);
      EXPECT_OK(world.rendezvous().store->get("back").status());
    }
    const base::Digest digest = base::sha256(memory.bytes);
    all.insert(all.end(), digest.begin(), digest.end());
  }
  return base::hex(base::sha256(all));
}

// Rank 2 is stopped, or killed, while it writes its part of an all-reduce into the memory of all others. They
// go on without it; if it was stopped it comes back while they do. Gives the hashes of all that they compute.
std::vector<std::string> hashes_after(int signal) {
  constexpr std::size_t kCount = 3U << 20;
  auto* const results = static_cast<Results*>(
      ::mmap(nullptr, sizeof(Results), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  Survivors survivors;
  const Status status = ProcessWorld{Results::kRanks}.run([&](const SpawnedRank& rank) {
    Survivors::stay();
    const auto world = join(rank, {.stall_after = kSoonStalled});
    ASSERT_TRUE(world);
    auto memory = world->allocate(Bytes{kCount * sizeof(float)});
    auto kept = world->allocate(Bytes::kib(100));
    ASSERT_OK(memory.status());
    ASSERT_OK(kept.status());
    const std::span data = floats_of(*memory);
    const std::span keepsake = floats_of(*kept);
    std::fill(data.begin(), data.end(), 1.F);
    std::fill(keepsake.begin(), keepsake.end(), static_cast<float>(rank.rank.value));
    ASSERT_OK(barrier(world->group()));

    if (rank.rank.value == 2)
      Trap::set(&data[data.size() * 5 / 8], signal);  // its slice is the third quarter
    Status lost;
    while (lost.ok()) lost = all_reduce(world->group(), data);
    if (rank.rank.value == 2) return expect_left_out(*world, lost);
    EXPECT_EQ(lost.cause().peer, Rank{2}) << lost.text();
    auto group = world->shrink();
    ASSERT_OK(group.status());
    EXPECT_EQ(members_of(**group), (std::vector<int>{0, 1, 3}));
    const std::string hash = hash_of_the_rest(*world, **group, *memory, signal);
    EXPECT_TRUE(all_are(keepsake, static_cast<float>(rank.rank.value)));
    std::copy(hash.begin(), hash.end(), results->hashes[rank.rank.value]);
    if (!::testing::Test::HasFailure()) survivors.add();
  });
  EXPECT_EQ(survivors.count(), 3) << status.text();
  std::vector<std::string> hashes;
  for (const int rank : {0, 1, 3}) hashes.emplace_back(results->hashes[rank]);
  ::munmap(results, sizeof(Results));
  return hashes;
}

TEST(ShrinkOfProcesses, AStoppedRankThatComesBackChangesNoByte) {
  const std::vector<std::string> stopped = hashes_after(SIGSTOP);
  const std::vector<std::string> killed = hashes_after(SIGKILL);
  EXPECT_EQ(stopped, killed);
  EXPECT_THAT(stopped, ::testing::Each(killed[0]));
}

TEST(Shrink, ARankThatIsExcludedHearsIt) {
  EXPECT_OK(run_ranks(3, [](const SpawnedRank& rank) {
    const auto world = join(rank);
    ASSERT_TRUE(world);
    ASSERT_OK(barrier(world->group()));
    if (rank.rank.value == 1) {
      // It is in an operation, as if nothing had happened.
      EXPECT_THAT(barrier(world->group()), StatusIs(Code::kAborted, HasSubstr("shrinks the world")));
      const Status out = world->shrink().status();
      EXPECT_EQ(out.failure(), Failure::kLeftOut);
      EXPECT_THAT(std::string(out.message()),
                  HasSubstr("rank 1 was left out of the world when it was shrunk to rank 0, 2: rank "));
      EXPECT_EQ(world->new_group({Rank{1}}).status().failure(), Failure::kLeftOut);
      return;
    }
    auto group = world->shrink({.exclude = {Rank{1}}});
    ASSERT_OK(group.status());
    EXPECT_EQ(members_of(**group), (std::vector<int>{0, 2}));
    ASSERT_OK(barrier(**group));
    EXPECT_EQ(world->shrink({.exclude = {rank.rank}}).status().code(), Code::kInvalid);
  }));
}

TEST(Shrink, WithNobodyLostMakesADeadGroupAnew) {
  EXPECT_OK(run_ranks(3, [](const SpawnedRank& rank) {
    const auto world = join(rank);
    ASSERT_TRUE(world);
    world->group().abort(Status::aborted("a hook threw", {.failure = Failure::kRemoteError}));
    for (int i = 0; i < 2; ++i) {
      auto group = world->shrink();
      ASSERT_OK(group.status());
      std::vector<int> ones{1};
      ASSERT_OK(all_reduce(**group, std::span(ones)));
      EXPECT_EQ(ones[0], 3);
    }
  }));
}

// Of a message that the shrink ends: it needs the world while the shrink waits for it.
TEST(Shrink, ACallbackMayUseTheWorld) {
  EXPECT_OK(run_ranks(2, [](const SpawnedRank& rank) {
    const auto world = join(rank);
    ASSERT_TRUE(world);
    auto other = world->new_group({Rank{0}, Rank{1}});
    ASSERT_OK(other.status());
    std::vector<int> never{0};
    const WorkPtr work = world->group().recv(Rank{1 - rank.rank.value}, 1, bytes_of(never));
    std::atomic<bool> called = false;
    work->on_complete([&](const Status& status) {
      EXPECT_FALSE(status.ok());
      other->reset();
      (void)world->new_group({rank.rank});
      called = true;
    });
    auto group = world->shrink();
    ASSERT_OK(group.status());
    EXPECT_TRUE(called);
    ASSERT_OK(barrier(**group));
  }));
}

}  // namespace
}  // namespace lockstep::backend
