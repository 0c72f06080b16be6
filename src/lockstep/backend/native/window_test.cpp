// Windows on worlds of real processes.
#include "lockstep/backend/window.h"

#include <gmock/gmock.h>

#include <cstring>
#include <numeric>
#include <string>

#include "lockstep/backend/native/world_test_support.h"
#include "lockstep/backend/operations.h"

namespace lockstep::backend {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::ProcessWorld;
using lockstep::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<Window> open_window(World& world, Bytes size) {
  std::vector<Rank> everyone;
  for (int i = 0; i < world.size().value; ++i) everyone.emplace_back(i);
  auto window = dynamic_cast<WindowMaker&>(world).open_window(everyone, size);
  EXPECT_OK(window.status());
  return window.ok() ? std::move(*window) : nullptr;
}

std::span<int> ints(ByteSpan bytes) {
  return {reinterpret_cast<int*>(bytes.data()), bytes.size() / sizeof(int)};
}

// Each rank writes to the next, signals it, and reads what it has itself written there.
void pass_round(World& world, std::size_t count) {
  const int size = world.size().value;
  const int own = world.rank().value;
  const Rank next{(own + 1) % size};
  const Rank before{(own + size - 1) % size};
  const auto window = open_window(world, Bytes{(count + 1) * sizeof(int)});
  ASSERT_TRUE(window);
  EXPECT_TRUE(std::ranges::all_of(ints(window->memory().bytes), [](int word) { return word == 0; }));
  ASSERT_OK(barrier(window->group()));
  for (int round = 1; round <= 3; ++round) {
    std::vector<int> words(count);
    std::iota(words.begin(), words.end(), own * 1000 + round);
    ASSERT_OK(window->put(next, sizeof(int), std::as_bytes(std::span(words))));
    ASSERT_OK(window->signal(next));
    ASSERT_OK(window->wait_signal(before));
    const std::span<int> mine = ints(window->memory().bytes);
    EXPECT_EQ(mine[0], 0);
    EXPECT_EQ(mine[1], before.value * 1000 + round);
    EXPECT_EQ(mine[count], before.value * 1000 + round + static_cast<int>(count) - 1);
    std::vector<int> back(count);
    ASSERT_OK(window->get(next, sizeof(int), std::as_writable_bytes(std::span(back))));
    EXPECT_EQ(back, words);
    // Nobody writes the next round before its reader has read this one.
    ASSERT_OK(window->signal(before));
    ASSERT_OK(window->wait_signal(next));
  }
  ASSERT_OK(barrier(window->group()));
}

TEST(Window, PassesBytesAndSignals) {
  for (const int size : {1, 2, 3}) {
    EXPECT_OK(run_ranks(size, [](const SpawnedRank& rank) {
      const auto world = join(rank);
      ASSERT_TRUE(world);
      pass_round(*world, 10);
      pass_round(*world, 100'000);
    }));
  }
}

TEST(Window, PassesThemBetweenHosts) {
  for (const int first : {1, 2}) {
    EXPECT_OK(run_ranks(3, [first](const SpawnedRank& rank) {
      const auto world = join_on_two_hosts(rank, first);
      ASSERT_TRUE(world);
      pass_round(*world, 10);
      pass_round(*world, 100'000);  // more than a message that is sent at once
    }));
  }
}

TEST(Window, RefusesWhatCannotBeMeantAndLivesOn) {
  EXPECT_OK(run_ranks(3, [](const SpawnedRank& rank) {
    const auto world = join_on_two_hosts(rank, 2);
    ASSERT_TRUE(world);
    const auto window = open_window(*world, Bytes{64});
    ASSERT_TRUE(window);
    std::vector<std::byte> bytes(65);
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_THAT(window->put(Rank{peer}, 0, bytes),
                  StatusIs(Code::kInvalid, HasSubstr(cat("of rank ", peer))));
      EXPECT_THAT(window->get(Rank{peer}, ~std::uint64_t{0}, std::span(bytes).first(1)),
                  StatusIs(Code::kInvalid, HasSubstr("do not fit")));
      EXPECT_OK(window->put(Rank{peer}, 64, std::span(bytes).first(0)));
    }
    EXPECT_THAT(window->signal(Rank{3}), StatusIs(Code::kInvalid, HasSubstr("has 3 ranks")));
    EXPECT_THAT(window->wait_signal(Rank{-1}), StatusIs(Code::kInvalid, HasSubstr("has 3 ranks")));
    const Rank far{rank.rank.value == 2 ? 0 : 2};
    EXPECT_THAT(window->map(far).status(), StatusIs(Code::kUnsupported, HasSubstr("another host")));
    EXPECT_OK(barrier(window->group()));
  }));
}

TEST(Window, ASignalThatDoesNotComeIsATimeoutAndTheNextWaitTakesIt) {
  for (const int first : {2, 1}) {
    EXPECT_OK(run_ranks(2, [first](const SpawnedRank& rank) {
      const auto world = first == 2 ? join(rank) : join_on_two_hosts(rank, first);
      ASSERT_TRUE(world);
      const auto window = open_window(*world, Bytes{64});
      ASSERT_TRUE(window);
      if (rank.rank.value == 0) {
        const Status late = window->wait_signal(Rank{1}, {.deadline = Clock::steady().in(20ms)});
        EXPECT_THAT(late, StatusIs(Code::kTimeout, HasSubstr("signal #1 of rank 1")));
        EXPECT_EQ(late.failure(), Failure::kMissingRanks);
        EXPECT_THAT(late.cause().missing, ElementsAre(Rank{1}));
      }
      ASSERT_OK(barrier(window->group()));
      if (rank.rank.value == 1) {
        EXPECT_OK(window->signal(Rank{0}));
        EXPECT_OK(window->signal(Rank{0}));
      } else {
        EXPECT_OK(window->wait_signal(Rank{1}));
        EXPECT_OK(window->wait_signal(Rank{1}));
      }
      ASSERT_OK(barrier(window->group()));
    }));
  }
}

TEST(Window, ARankThatLeavesIsNamedByWhoNeedsIt) {
  for (const int first : {2, 1}) {
    EXPECT_OK(run_ranks(2, [first](const SpawnedRank& rank) {
      const auto world = first == 2 ? join(rank) : join_on_two_hosts(rank, first);
      ASSERT_TRUE(world);
      auto window = open_window(*world, Bytes{64});
      ASSERT_TRUE(window);
      if (rank.rank.value == 1) {
        EXPECT_OK(window->signal(Rank{0}));
        window.reset();
      } else {
        EXPECT_OK(window->wait_signal(Rank{1})) << "it was sent before";
        const Status left = window->wait_signal(Rank{1});
        EXPECT_THAT(left, StatusIs(Code::kDisconnected, HasSubstr("rank 1 has left")));
        EXPECT_EQ(left.failure(), Failure::kDesync);
        std::byte byte{};
        EXPECT_EQ(window->put(Rank{1}, 0, {&byte, 1}).failure(), Failure::kDesync);
        EXPECT_EQ(window->get(Rank{1}, 0, {&byte, 1}).failure(), Failure::kDesync);
        EXPECT_EQ(window->signal(Rank{1}).failure(), Failure::kDesync);
        EXPECT_OK(window->put(Rank{0}, 0, {&byte, 1}));
      }
      ASSERT_OK(barrier(world->group()));
    }));
  }
}

TEST(Window, ARankThatLeavesBeforeItAnswersIsNamed) {
  EXPECT_OK(run_ranks(2, [](const SpawnedRank& rank) {
    const auto world = join_on_two_hosts(rank, 1);
    ASSERT_TRUE(world);
    auto window = open_window(*world, Bytes::mib(1));
    ASSERT_TRUE(window);
    if (rank.rank.value == 0) {
      // Some of them are answered, one is not.
      Status left;
      std::vector<std::byte> bytes(window->size_of(Rank{1}).value);
      for (int i = 0; i < 100'000 && left.ok(); ++i)
        left = i % 2 == 0 ? window->put(Rank{1}, 0, bytes) : window->get(Rank{1}, 0, bytes);
      EXPECT_EQ(left.failure(), Failure::kDesync) << left.text();
    } else {
      window.reset();
    }
    ASSERT_OK(barrier(world->group()));
  }));
}

TEST(WindowOfProcesses, ARankThatDiesIsNamedByWhoWaitsForIt) {
  for (const int first : {3, 1}) {
    Survivors survivors;
    const Status status = ProcessWorld{3}.run([&survivors, first](const SpawnedRank& rank) {
      Survivors::stay();
      const auto world = first == 3 ? join(rank) : join_on_two_hosts(rank, first);
      ASSERT_TRUE(world);
      const auto window = open_window(*world, Bytes{64});
      ASSERT_TRUE(window);
      ASSERT_OK(barrier(window->group()));
      if (rank.rank.value == 2) ::kill(::getpid(), SIGKILL);
      const Status died = window->wait_signal(Rank{2});
      EXPECT_THAT(died, StatusIs(Code::kDisconnected, HasSubstr("rank 2")));
      EXPECT_EQ(died.failure(), Failure::kPeerDied) << died.text();
      EXPECT_EQ(died.cause().peer, Rank{2});
      std::byte byte{};
      Status later;
      while (later.ok()) later = window->put(Rank{1}, 0, {&byte, 1});
      EXPECT_EQ(later.failure(), Failure::kPeerDied) << later.text();
      if (!::testing::Test::HasFailure()) survivors.add();
    });
    EXPECT_EQ(survivors.count(), 2) << status.text();
  }
}

TEST(Window, EndsWhenItsWorldIsShrunk) {
  EXPECT_OK(run_ranks(3, [](const SpawnedRank& rank) {
    const auto world = join_on_two_hosts(rank, 1);
    ASSERT_TRUE(world);
    auto window = open_window(*world, Bytes{64});
    ASSERT_TRUE(window);
    const SharedMemory own = window->memory();
    ints(own.bytes)[0] = 7;
    ASSERT_OK(barrier(window->group()));
    // Who is out of it first may end the group for those who are not.
    ASSERT_OK(world->rendezvous().store->barrier("all are out", WorldSize{3}));
    if (rank.rank.value == 2) return;
    auto left = world->shrink({.exclude = {Rank{2}}});
    ASSERT_OK(left.status());
    std::byte byte{};
    EXPECT_EQ(window->put(Rank{1 - rank.rank.value}, 0, {&byte, 1}).failure(), Failure::kClosed);
    EXPECT_EQ(window->wait_signal(Rank{1 - rank.rank.value}).failure(), Failure::kClosed);
    window.reset();
    EXPECT_EQ(ints(own.bytes)[0], 7);
    EXPECT_OK(barrier(**left));
  }));
}

TEST(Window, IsNotMadeIfOneRankHasNoRoom) {
  EXPECT_OK(run_ranks(3, [](const SpawnedRank& rank) {
    const auto world = join(rank, {.heap_capacity = Bytes::mib(64)});
    ASSERT_TRUE(world);
    const Bytes size = rank.rank.value == 1 ? Bytes::gib(2) : Bytes{64};
    const auto window = dynamic_cast<WindowMaker&>(*world).open_window({Rank{0}, Rank{1}, Rank{2}}, size);
    EXPECT_EQ(window.status().failure(), Failure::kNoSpace);
    EXPECT_THAT(window.status(), StatusIs(Code::kInternal, HasSubstr("rank 1 has no room")));
    EXPECT_TRUE(open_window(*world, Bytes{64}));
    EXPECT_OK(barrier(world->group()));
  }));
}

TEST(Window, MemoryIsGivenBackWhenNobodyUsesIt) {
  EXPECT_OK(run_ranks(2, [](const SpawnedRank& rank) {
    const auto world = join(rank, {.heap_capacity = Bytes::mib(64)});
    ASSERT_TRUE(world);
    SharedMemory kept;
    SharedMemory mapped;
    for (int i = 0; i < 40; ++i) {
      const auto window = open_window(*world, Bytes::mib(4));
      ASSERT_TRUE(window);
      if (i != 0) continue;
      kept = window->memory();
      auto peer = window->map(Rank{1 - rank.rank.value});
      ASSERT_OK(peer.status());
      mapped = *peer;
      ASSERT_OK(barrier(window->group()));
      ints(mapped.bytes)[3] = rank.rank.value + 7;
    }
    ASSERT_OK(barrier(world->group()));
    EXPECT_EQ(ints(kept.bytes)[3], 1 - rank.rank.value + 7);
    EXPECT_EQ(ints(mapped.bytes)[3], rank.rank.value + 7);
    ASSERT_OK(barrier(world->group()));
  }));
}

}  // namespace
}  // namespace lockstep::backend
