// Groups, and failures, which end a group of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/backend/operations.h"
#include "lockstep/testing/backend_conformance_cases.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

// For what would be the end of the world's own group.
std::unique_ptr<Backend> group_of_all(Groups& groups) {
  std::vector<Rank> members;
  for (int r = 0; r < groups.size().value; ++r) members.emplace_back(r);
  auto group = groups.new_group(members, {.timeout = 60s});
  EXPECT_OK(group.status());
  return group.ok() ? std::move(*group) : nullptr;
}

void members_alone(Groups& groups, SupportTable& /*table*/) {
  const int n = groups.size().value;
  const int own = groups.rank().value;
  if (own < n - 1) {
    // In another order than in the world.
    std::vector<Rank> members;
    for (int r = n - 2; r >= 0; --r) members.emplace_back(r);
    for (int round = 0; round < 2; ++round) {
      auto group = groups.new_group(members, {.timeout = 60s});
      ASSERT_OK(group.status());
      EXPECT_EQ((*group)->size().value, n - 1);
      EXPECT_EQ((*group)->rank().value, n - 2 - own);
      EXPECT_EQ((*group)->world_rank((*group)->rank()), groups.rank());
      std::vector<int> data{own};
      ASSERT_OK(backend::broadcast(**group, std::span(data), Rank{0}));
      EXPECT_EQ(data[0], n - 2);
    }
  } else {
    EXPECT_THAT(groups.new_group({Rank{0}}).status(), StatusIs(Code::kInvalid, HasSubstr("not a member")));
    EXPECT_EQ(groups.new_group({Rank{own}, Rank{n}}).status().code(), Code::kInvalid);
    auto alone = groups.new_group({Rank{own}}, {.name = "alone"});
    ASSERT_OK(alone.status());
    EXPECT_EQ((*alone)->name(), "alone");
    std::vector<float> data{1, 2};
    ASSERT_OK(backend::all_reduce(**alone, std::span(data)));
    EXPECT_THAT(data, ::testing::ElementsAre(1, 2));
  }
}

void split(Groups& groups, SupportTable& /*table*/) {
  const int own = groups.rank().value;
  const int n = groups.size().value;
  // The last rank is in none; the others are ordered backwards.
  const SplitBy by{.color = own == n - 1 ? std::nullopt : std::optional(own % 2), .key = -own};
  auto group = groups.split(groups.group(), by, {.timeout = 60s});
  ASSERT_OK(group.status());
  if (own == n - 1) {
    EXPECT_EQ(*group, nullptr);
    return;
  }
  std::vector<int> largest{own};
  ASSERT_OK(backend::all_reduce(**group, std::span(largest), ReduceOp::kMax));
  EXPECT_EQ((*group)->world_rank(Rank{0}), Rank{largest[0]});
}

// Several groups at once, each with operations under way.
void side_by_side(Groups& groups, SupportTable& /*table*/) {
  std::vector<std::unique_ptr<Backend>> made;
  for (int i = 0; i < 3; ++i) {
    made.push_back(group_of_all(groups));
    ASSERT_TRUE(made.back());
  }
  std::vector<std::vector<int>> data;
  for (int i = 0; i < 3; ++i) data.emplace_back(100, i + 1);
  std::vector<WorkPtr> works;
  for (std::size_t i = 0; i < 3; ++i) {
    const ByteSpan bytes = bytes_of(data[i]);
    works.push_back(
        made[i]->start({.kind = OpKind::kAllReduce, .dtype = DType::kInt32, .outputs = {&bytes, 1}}));
  }
  for (const std::size_t i : {2U, 0U, 1U}) {
    ASSERT_OK(works[i]->wait());
    EXPECT_THAT(data[i], ::testing::Each(static_cast<int>(i + 1) * groups.size().value));
  }
}

void monitored(Groups& groups, SupportTable& /*table*/) {
  const auto made = group_of_all(groups);
  ASSERT_TRUE(made);
  Backend& group = *made;
  ASSERT_OK(group.monitored_barrier());
  if (group.size().value == 1) return;
  const Rank late{group.size().value - 1};
  Status first;
  if (group.rank() != late) first = group.monitored_barrier({.deadline = Clock::steady().in(200ms)});
  ASSERT_OK(backend::barrier(groups.group()));  // the late one comes when all others have given up
  const Deadline deadline = Clock::steady().in(60s);
  while (group.failure().ok() && !deadline.expired()) std::this_thread::yield();
  if (group.rank() == late) first = group.failure();
  for (const Status& status : {first, group.monitored_barrier(), backend::barrier(group)}) {
    EXPECT_EQ(status.code(), Code::kTimeout) << status.text();
    EXPECT_EQ(status.failure(), Failure::kMissingRanks);
    ASSERT_FALSE(status.cause().missing.empty());
    EXPECT_EQ(status.cause().missing.back(), late);
  }
  ASSERT_OK(backend::barrier(groups.group()));  // nobody leaves while others wait
}

void abort_is_heard(Groups& groups, SupportTable& /*table*/) {
  const auto group = group_of_all(groups);
  ASSERT_TRUE(group);
  ASSERT_OK(backend::barrier(groups.group()));  // not of the group, which some would still be in
  if (group->rank().value == 0) group->abort(Status::aborted("the user's hook threw"));
  const Deadline deadline = Clock::steady().in(60s);
  while (group->failure().ok() && !deadline.expired()) std::this_thread::yield();
  for (const Status& heard : {group->failure(), backend::barrier(*group), group->send(Rank{0}, 1, {})->wait(),
                              group->start({})->wait()}) {
    EXPECT_THAT(heard, StatusIs(Code::kAborted, HasSubstr("rank 0 said: the user's hook threw")));
    EXPECT_EQ(heard.failure(), Failure::kRemoteError);
    EXPECT_EQ(heard.cause().peer, Rank{0});
  }
  ASSERT_OK(backend::barrier(groups.group()));
}

void calls_that_differ(Groups& groups, SupportTable& /*table*/) {
  const auto group = group_of_all(groups);
  ASSERT_TRUE(group);
  std::vector<float> data(group->rank().value == 0 ? 10 : 12, 1.F);
  const Status status = backend::all_reduce(*group, std::span(data));
  EXPECT_EQ(status.failure(), Failure::kDesync) << status.text();
  EXPECT_EQ(backend::barrier(*group).failure(), Failure::kDesync);
  ASSERT_OK(backend::barrier(groups.group()));
}

}  // namespace

std::vector<BackendCase> group_cases() {
  return {{"Group", "IsMadeByItsMembersAlone", members_alone},
          {"Group", "IsSplitByColourAndKey", split},
          {"Group", "RunsBesideOthers", side_by_side},
          {"Group", "AMonitoredBarrierNamesWhoDidNotCome", monitored},
          {"Group", "AnAbortIsHeardByAll", abort_is_heard},
          {"Group", "CallsThatDifferEndIt", calls_that_differ}};
}

}  // namespace lockstep::testing
