// Worlds and groups that are destroyed in every order, and while they are used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "lockstep/backend/native/world_test_support.h"
#include "lockstep/backend/operations.h"
#include "lockstep/backend/rounds.h"
#include "lockstep/backend/window.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::backend {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::StatusIs;
using ::testing::AnyOf;
using ::testing::HasSubstr;

std::vector<Rank> everyone(const World& world) {
  std::vector<Rank> ranks;
  for (int i = 0; i < world.size().value; ++i) ranks.emplace_back(i);
  return ranks;
}

void expect_closed(const Status& status, std::string_view text = "destroyed its world") {
  EXPECT_THAT(status, StatusIs(Code::kAborted, HasSubstr(text)));
  EXPECT_EQ(status.failure(), Failure::kClosed);
}

// Every call of a group whose world is gone.
void expect_ended(Backend& group) {
  std::vector<int> number{1};
  expect_closed(all_reduce(group, std::span(number)));
  expect_closed(group.start({.kind = OpKind::kBarrier})->wait());
  expect_closed(group.monitored_barrier());
  expect_closed(group.send(Rank{0}, 1, bytes_of(number))->wait());
  expect_closed(group.recv(Rank{0}, 1, bytes_of(number))->wait());
  expect_closed(group.recv({}, 1, bytes_of(number))->wait());
  expect_closed(group.failure());
  group.abort(Status::aborted("too late"));
  expect_closed(all_reduce(group, std::span(number)));
}

TEST(WorldLifetime, WorldAndGroupsGoInEveryOrder) {
  for (const int first : {0, 3}) {
    EXPECT_OK(run_ranks(3, [first](const SpawnedRank& rank) {
      auto world = join_on_two_hosts(rank, 2);
      ASSERT_TRUE(world);
      std::array<std::unique_ptr<Backend>, 3> groups;
      for (auto& group : groups) {
        auto made = world->new_group(&group == &groups[2] ? std::vector{rank.rank} : everyone(*world));
        ASSERT_OK(made.status());
        group = std::move(*made);
        ASSERT_OK(barrier(*group));
      }
      std::array order{0, 1, 2};  // 0: the world
      for (int i = 0; i < first + rank.rank.value; ++i) std::next_permutation(order.begin(), order.end());
      for (const int next : order) {
        if (next != 0) {
          groups[static_cast<std::size_t>(next)].reset();
          continue;
        }
        world.reset();
        for (const auto& group : groups)
          if (group) expect_ended(*group);
      }
    }));
  }
}

TEST(WorldLifetime, TheNextWorldDoesNotMindAGroupOfTheLastOne) {
  EXPECT_OK(run_ranks(2, [](const SpawnedRank& rank) {
    auto world = join(rank, {.stall_after = kNeverStalled});
    ASSERT_TRUE(world);
    auto old = world->new_group(everyone(*world));
    ASSERT_OK(old.status());
    ASSERT_OK(barrier(**old));
    world.reset();
    world = join(rank, {.stall_after = kNeverStalled});
    ASSERT_TRUE(world);
    std::vector<int> ones{1};
    ASSERT_OK(all_reduce(world->group(), std::span(ones)));
    EXPECT_EQ(ones[0], 2);
    expect_ended(**old);
  }));
}

TEST(WorldLifetime, WhatIsUnderWayEnds) {
  EXPECT_OK(run_ranks(3, [](const SpawnedRank& rank) {
    auto world = join_on_two_hosts(rank, 2);
    ASSERT_TRUE(world);
    auto made = world->new_group(everyone(*world));
    ASSERT_OK(made.status());
    const std::unique_ptr<Backend> group = std::move(*made);
    ASSERT_OK(barrier(*group));
    // Rank 0 never comes; rank 2 waits for it together with rank 1, whose world goes.
    const std::shared_ptr<store::Store> store = world->rendezvous().store;
    if (rank.rank == Rank{0}) {
      ASSERT_OK(store->get("it is over").status());
      return;
    }
    std::vector<float> data(1000);
    if (rank.rank == Rank{2}) {
      const Status left = all_reduce(*group, std::span(data));
      EXPECT_THAT(left.failure(), AnyOf(Failure::kClosed, Failure::kDesync)) << left.text();
      return;
    }
    std::vector<int> in{0, 0};
    const WorkPtr received = group->recv(Rank{0}, 1, bytes_of(in));
    const WorkPtr from_any = group->recv({}, 2, bytes_of(in));
    std::atomic<int> told = 0;
    received->on_complete([&](const Status&) { ++told; });
    const ByteSpan bytes = bytes_of(data);
    const WorkPtr begun =
        group->start({.kind = OpKind::kAllReduce, .dtype = DType::kFloat32, .outputs = {&bytes, 1}});
    const WorkPtr queued = group->start({.kind = OpKind::kBarrier});
    queued->on_complete([&](const Status&) { ++told; });
    std::thread waits([&] { expect_closed(group->monitored_barrier()); });
    while (group->sequence() < 4) std::this_thread::yield();
    world.reset();
    waits.join();
    for (const WorkPtr& work : {received, from_any, begun, queued}) expect_closed(work->wait());
    expect_ended(*group);
    while (told < 2) std::this_thread::yield();
    ASSERT_OK(store->set("it is over", {}));
  }));
}

TEST(WorldLifetime, ThreadsThatUseGroupsHearOfItsEnd) {
  EXPECT_OK(run_ranks(2, [](const SpawnedRank& rank) {
    auto world = join_on_two_hosts(rank, rank.arguments.empty() ? 1 : 2);
    ASSERT_TRUE(world);
    const Rank other{1 - rank.rank.value};
    std::array<std::unique_ptr<Backend>, 2> groups;
    for (auto& group : groups) {
      auto made = world->new_group(everyone(*world));
      ASSERT_OK(made.status());
      group = std::move(*made);
    }
    std::atomic<int> rounds = 0;
    const auto until_it_ends = [&rounds](const auto& operation) {
      Status status;
      while (status.ok()) {
        status = operation();
        ++rounds;
      }
      EXPECT_THAT(status.failure(), AnyOf(Failure::kClosed, Failure::kDesync)) << status.message();
    };
    std::vector<std::thread> users;
    for (const auto& group : groups) {
      users.emplace_back([&] {
        std::vector<float> data(100, 1.F);
        until_it_ends([&] { return all_reduce(*group, std::span(data)); });
      });
      users.emplace_back([&] {
        std::vector<int> number{1};
        until_it_ends([&] {
          const WorkPtr received = group->recv(other, 1, bytes_of(number));
          const int out = 2;
          const Status sent = group->send(other, 1, std::as_bytes(std::span(&out, 1)))->wait();
          const Status came = received->wait();
          return sent.ok() ? came : sent;
        });
      });
    }
    while (rounds < 100) std::this_thread::yield();
    world.reset();
    for (std::thread& user : users) user.join();
    for (const auto& group : groups) expect_closed(barrier(*group));
  }));
}

// Which ends the group on its host as soon as it is said.
TEST(WorldLifetime, AGroupThatIsDestroyedInAnOperationIsLeftForMessagesAndOperations) {
  EXPECT_OK(run_ranks(3, [](const SpawnedRank& rank) {
    const auto world = join(rank);
    ASSERT_TRUE(world);
    auto group = world->new_group(everyone(*world));
    ASSERT_OK(group.status());
    if (rank.rank == Rank{0}) {
      std::promise<void> begun;
      Rounds rounds;
      rounds.calls.emplace_back([&] {
        begun.set_value();
        return Result<Call>(Call{.kind = OpKind::kBarrier});
      });
      const WorkPtr running = dynamic_cast<RoundStarter&>(**group).start_rounds(std::move(rounds), {});
      begun.get_future().wait();
      group->reset();
      expect_closed(running->wait(), "destroyed");
    } else {
      std::vector<int> number{1};
      const Status received = (*group)->recv(Rank{3 - rank.rank.value}, 1, bytes_of(number))->wait();
      for (const Status& status : {received, barrier(**group), (*group)->failure()}) {
        EXPECT_EQ(status.failure(), Failure::kDesync) << status.text();
        EXPECT_EQ(status.cause().peer, Rank{0}) << status.text();
      }
    }
    ASSERT_OK(barrier(world->group()));  // nobody has left the world until then
  }));
}

// Rank 0 has left when it is said to have died: that is what has ended the group.
TEST(WorldLifetime, WhatHasEndedAGroupIsNotChangedByARankThatHasLeftSince) {
  EXPECT_OK(run_ranks(3, [](const SpawnedRank& rank) {
    const auto world = join(rank);
    ASSERT_TRUE(world);
    ASSERT_OK(barrier(world->group()));
    if (rank.rank == Rank{0}) return;
    Backend& group = world->group();
    store::Store& store = *world->rendezvous().store;
    std::vector<int> number{1};
    const WorkPtr pending = group.recv(Rank{3 - rank.rank.value}, 1, bytes_of(number));
    // Is known to have left.
    EXPECT_EQ(group.recv(Rank{0}, 1, bytes_of(number))->wait().failure(), Failure::kDesync);
    ASSERT_OK(store.barrier("both know it", WorldSize{2}));
    if (rank.rank == Rank{1})
      group.abort(Status::disconnected("cut", {.failure = Failure::kPeerDied, .peer = Rank{0}}));
    EXPECT_EQ(pending->wait().failure(), Failure::kPeerDied);
    EXPECT_EQ(barrier(group).failure(), Failure::kPeerDied);
    ASSERT_OK(store.barrier("both have heard it", WorldSize{2}));
  }));
}

// On its host and on another one: rank 1 waits for 0 and 2.
TEST(WorldLifetime, WhoWaitsForARankThatHasLeftTheGroupHearsIt) {
  EXPECT_OK(run_ranks(3, [](const SpawnedRank& rank) {
    const auto world = join_on_two_hosts(rank, 2);
    ASSERT_TRUE(world);
    auto group = world->new_group(everyone(*world));
    ASSERT_OK(group.status());
    std::vector<int> number{rank.rank.value};
    if (rank.rank != Rank{1}) {
      EXPECT_OK((*group)->send(Rank{1}, 1, bytes_of(number))->wait());
      group->reset();
    } else {
      for (const int peer : {0, 2}) {
        EXPECT_OK((*group)->recv(Rank{peer}, 1, bytes_of(number))->wait());
        EXPECT_EQ(number[0], peer);
        const Status left = (*group)->recv(Rank{peer}, 1, bytes_of(number))->wait();
        EXPECT_THAT(left, StatusIs(Code::kDisconnected, HasSubstr(cat("rank ", peer, " left the group"))));
        EXPECT_EQ(left.failure(), Failure::kDesync);
        EXPECT_EQ(left.cause().peer, Rank{peer});
      }
      EXPECT_OK((*group)->failure());
    }
    ASSERT_OK(barrier(world->group()));  // nobody has left the world until then
  }));
}

TEST(WorldLifetime, AWindowEndsWithItsWorld) {
  EXPECT_OK(run_ranks(3, [](const SpawnedRank& rank) {
    auto world = join_on_two_hosts(rank, 2);
    ASSERT_TRUE(world);
    auto opened = dynamic_cast<WindowMaker&>(*world).open_window(everyone(*world), Bytes{64}, {});
    ASSERT_OK(opened.status());
    Window& window = **opened;
    ASSERT_OK(barrier(window.group()));
    const SharedMemory memory = window.memory();
    world.reset();
    const int number = 1;
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == rank.rank.value) continue;
      EXPECT_THAT(window.put(Rank{peer}, 0, std::as_bytes(std::span(&number, 1))),
                  StatusIs(Code::kAborted, HasSubstr("its world")));
      EXPECT_THAT(window.wait_signal(Rank{peer}), StatusIs(Code::kAborted, HasSubstr("its world")));
    }
    opened->reset();
    memory.bytes[0] = std::byte{1};  // it is still there
  }));
}

TEST(WorldLifetime, AWorldOfOneMayGoBeforeItsGroupsToo) {
  auto joined = World::join({}, Environment{});
  ASSERT_OK(joined.status());
  auto group = (*joined)->new_group({Rank{0}});
  ASSERT_OK(group.status());
  std::vector<int> number{1};
  const WorkPtr received = (*group)->recv(Rank{0}, 1, bytes_of(number));
  joined->reset();
  expect_closed(received->wait());
  expect_ended(**group);
}

}  // namespace
}  // namespace lockstep::backend
