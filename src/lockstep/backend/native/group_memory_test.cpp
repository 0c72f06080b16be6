// Groups of a rank that runs out of memory in an operation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <new>
#include <span>
#include <vector>

#include "lockstep/backend/native/native_group.h"
#include "lockstep/backend/native/world_test_support.h"
#include "lockstep/backend/operations.h"
#include "lockstep/testing/short_memory.h"

namespace lockstep::backend {
namespace {

using namespace std::chrono_literals;

// What each rank's all-reduce gives, of which rank 0 has none of its allocations from `fail_at` on. True if
// it needed one.
bool fails_without(World& world, int fail_at) {
  auto made = world.new_group({Rank{0}, Rank{1}}, {.name = cat("group ", fail_at)});
  EXPECT_OK(made.status());
  if (!made.ok()) return false;
  std::unique_ptr<Backend> group = std::move(*made);
  std::vector<float> data(100, 1);
  Status status;
  bool needed = false;
  bool has_begun = true;
  const auto reduce = [&] {
    try {
      status = all_reduce(*group, std::span(data));
    } catch (const std::bad_alloc&) {
      has_begun = false;
    }
  };
  if (world.rank().value == 0) {
    needed = testing::without_memory_after(fail_at, reduce);
    EXPECT_TRUE(needed || status.ok()) << status.text();
    if (!has_begun) group->abort(Status::internal("no memory", {.failure = Failure::kNoMemory}));
    if (!status.ok()) {
      EXPECT_EQ(status.failure(), Failure::kNoMemory) << status.text();
      EXPECT_EQ(all_reduce(*group, std::span(data)).failure(), Failure::kNoMemory);
    }
    group.reset();  // who has not heard it yet hears it now
  } else {
    reduce();
    EXPECT_TRUE(status.ok() || status.failure() == Failure::kNoMemory) << status.text();
  }
  return needed;
}

TEST(GroupMemory, WhoHasNoneForAnOperationFailsAndNobodyHangs) {
  for (const int first : {1, 2}) {  // on two hosts, and on one
    EXPECT_OK(testing::ProcessWorld{2}.run([&](const SpawnedRank& rank) {
      const auto world = join_on_two_hosts(rank, first);
      ASSERT_TRUE(world);
      store::Store& store = *world->rendezvous().store;
      for (int fail_at = 0; !::testing::Test::HasFailure(); ++fail_at) {
        const bool needed = fails_without(*world, fail_at);
        const std::string key = cat("needed/", first, '/', fail_at);
        if (rank.rank.value == 0) {
          ASSERT_OK(store.set(key, bytes_of(needed ? "yes" : "no")));
        }
        const auto said = store.get(key);
        ASSERT_OK(said.status());
        if (text_of(*said) == "no") break;
      }
    }));
  }
}

// What rank 0, which has no memory at all for what `ends` the group there, says as soon as it has some again;
// rank 1 waits in an operation, and the group stays.
void is_told_later(World& world, const std::function<void(Backend&)>& ends) {
  auto made = world.new_group({Rank{0}, Rank{1}}, {.name = "kept"});
  ASSERT_OK(made.status());
  Backend& group = **made;
  std::vector<float> data(100, 1);
  store::Store& store = *world.rendezvous().store;
  if (world.rank().value == 0) {
    EXPECT_TRUE(testing::without_memory_after(0, [&] { ends(group); }));
    EXPECT_EQ(group.failure().failure(), Failure::kNoMemory) << group.failure().text();
    EXPECT_EQ(all_reduce(group, std::span(data)).failure(), Failure::kNoMemory);
    EXPECT_OK(store.get("heard").status());
  } else {
    const Status status = all_reduce(group, std::span(data));
    EXPECT_EQ(status.failure(), Failure::kNoMemory) << status.text();
    EXPECT_OK(store.set("heard", {}));
  }
}

TEST(GroupMemory, WhoHasNoneToSayThatAGroupHasEndedSaysItWhenThereIsSome) {
  for (const int first : {1, 2}) {  // on two hosts, and on one
    EXPECT_OK(testing::ProcessWorld{2}.run([&](const SpawnedRank& rank) {
      const auto world = join_on_two_hosts(rank, first);
      ASSERT_TRUE(world);
      const Status why = Status::internal("over", {.failure = Failure::kNoMemory});
      is_told_later(*world, [&why](Backend& group) { group.abort(why); });
    }));
  }
}

TEST(GroupMemory, WhoHasNoneWhenItsMessagesEndFailsItsGroups) {
  for (const int first : {1, 2}) {
    EXPECT_OK(testing::ProcessWorld{2}.run([&](const SpawnedRank& rank) {
      const auto world = join_on_two_hosts(rank, first);
      ASSERT_TRUE(world);
      const Status why = Status::internal("out of memory", {.failure = Failure::kNoMemory});
      is_told_later(*world,
                    [&why](Backend& group) { dynamic_cast<NativeGroup&>(group).fail_from_outside(why); });
    }));
  }
}

TEST(GroupMemory, WhoDestroysAGroupNeedsNone) {
  for (const int first : {1, 2}) {
    EXPECT_OK(testing::ProcessWorld{2}.run([&](const SpawnedRank& rank) {
      const auto world = join_on_two_hosts(rank, first);
      ASSERT_TRUE(world);
      auto made = world->new_group({Rank{0}, Rank{1}});
      ASSERT_OK(made.status());
      std::vector<float> data(100, 1);
      if (rank.rank.value == 0) {
        EXPECT_TRUE(testing::without_memory_after(0, [&made] { made->reset(); }));
      } else {
        EXPECT_FALSE(all_reduce(**made, std::span(data)).ok());
      }
    }));
  }
}

}  // namespace
}  // namespace lockstep::backend
