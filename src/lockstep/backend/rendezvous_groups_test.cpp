#include "lockstep/backend/rendezvous_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/backend/native/world_test_support.h"
#include "lockstep/backend/operations.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::backend {
namespace {

using lockstep::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Makes native groups, of a world that the first of them joins in its store.
class Maker {
 public:
  explicit Maker(const SpawnedRank& rank) : rank_(rank) {}

  Result<std::unique_ptr<Backend>> operator()(const GroupPlan& plan) {
    plans.push_back(plan);
    if (!world_) {
      WorldOptions options = options_of(rank_, {});
      options.rendezvous = {.store = plan.store, .rank = plan.rank, .world_size = rank_.world_size};
      LOCKSTEP_ASSIGN(world_, World::join(options, rank_.environment));
    }
    // The world has a group "world" of its own.
    return world_->new_group(plan.members, {.name = "own " + plan.name, .timeout = plan.timeout});
  }

  std::vector<GroupPlan> plans;

 private:
  const SpawnedRank& rank_;
  std::unique_ptr<World> world_;
};

TEST(RendezvousGroups, AsksForAGroupWithAPlanOfItsOwn) {
  EXPECT_OK(run_ranks(3, [](const SpawnedRank& rank) {
    const auto maker = std::make_shared<Maker>(rank);
    const auto joined =
        join_groups([maker](const GroupPlan& plan) { return (*maker)(plan); },
                    {.rendezvous = options_of(rank, {}).rendezvous, .timeout = std::chrono::seconds(50)},
                    rank.environment);
    ASSERT_OK(joined.status());
    RendezvousGroups& groups = **joined;
    EXPECT_EQ(groups.rank(), rank.rank);
    EXPECT_EQ(groups.local_rank(), rank.rank);
    EXPECT_EQ(groups.local_size(), WorldSize{3});
    std::vector<int> data{1};
    ASSERT_OK(all_reduce(groups.group(), std::span(data)));
    EXPECT_THAT(data, ElementsAre(3));

    const std::vector<Rank> members{Rank{2}, Rank{0}};
    EXPECT_EQ(groups.new_group({Rank{0}, Rank{3}}).status().code(), Code::kInvalid);
    if (rank.rank.value == 1) {
      EXPECT_THAT(groups.new_group(members).status(), StatusIs(Code::kInvalid, HasSubstr("not a member")));
    } else {
      const auto pair = groups.new_group(members, {.name = "pair"});
      ASSERT_OK(pair.status());
      ASSERT_OK(broadcast(**pair, std::span(data), Rank{0}));
      const GroupPlan& plan = maker->plans.back();
      EXPECT_EQ(plan.name, "pair");
      EXPECT_EQ(plan.members, members);
      EXPECT_EQ(plan.rank, Rank{rank.rank.value == 2 ? 0 : 1});
      // Keys are the group's alone.
      const std::string key = "said";
      ASSERT_OK(plan.store->set(key, bytes_of(key)));
      const auto seen = maker->plans.front().store->check({&key, 1});
      ASSERT_OK(seen.status());
      EXPECT_FALSE(*seen);
    }
    EXPECT_EQ(maker->plans.front().name, "world");
    EXPECT_EQ(maker->plans.front().timeout, std::chrono::seconds(50));
    ASSERT_OK(barrier(groups.group()));
  }));
}

TEST(RendezvousGroups, AnErrorOfTheOneWhoMakesThemIsThatOfTheJoin) {
  const auto joined =
      join_groups([](const GroupPlan&) { return Status::unsupported("no such hardware"); }, {}, {});
  EXPECT_THAT(joined.status(), StatusIs(Code::kUnsupported, HasSubstr("no such hardware")));
}

}  // namespace
}  // namespace lockstep::backend
