#include "lockstep/backend/native/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "lockstep/base/text.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/testing/ranks.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::backend {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::ranks_below;
using lockstep::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Kind = Loss::Kind;

Losses lost(std::initializer_list<int> ranks, Kind kind = Kind::kSuspected) {
  Losses losses;
  for (const int rank : ranks) losses[Rank{rank}] = {.kind = kind, .why = "it is lost"};
  return losses;
}

std::vector<int> ranks_of(const Losses& losses) {
  std::vector<int> ranks;
  for (const auto& [rank, loss] : losses) ranks.push_back(rank.value);
  return ranks;
}

TEST(Resolve, WhoDidNotComeAndIsLostToSomeoneIsOut) {
  EXPECT_THAT(ranks_of(resolve({{Rank{0}, {}}, {Rank{1}, lost({2, 3})}})), ElementsAre(2, 3));
  EXPECT_THAT(ranks_of(resolve({{Rank{0}, {}}, {Rank{1}, {}}})), IsEmpty());
}

TEST(Resolve, OfTwoThatAreLostToEachOtherTheHigherIsOut) {
  EXPECT_THAT(ranks_of(resolve({{Rank{0}, lost({1})}, {Rank{1}, lost({0})}})), ElementsAre(1));
}

TEST(Resolve, OfTwoThatDisagreeTheOneThatIsMissedIsOut) {
  EXPECT_THAT(ranks_of(resolve({{Rank{0}, {}}, {Rank{1}, lost({0})}})), ElementsAre(0));
  EXPECT_THAT(ranks_of(resolve({{Rank{0}, lost({1})}, {Rank{1}, {}}})), ElementsAre(1));
}

TEST(Resolve, OneThatHasLostEverybodyIsOutAlone) {
  const Reports reports = {{Rank{0}, {}}, {Rank{1}, {}}, {Rank{2}, lost({0, 1, 3})}, {Rank{3}, {}}};
  EXPECT_THAT(ranks_of(resolve(reports)), ElementsAre(2));
}

TEST(Resolve, OneThatEverybodyHasLostIsOutEvenIfItIsTheLowest) {
  const Reports reports = {{Rank{0}, {}}, {Rank{1}, lost({0})}, {Rank{2}, lost({0})}};
  EXPECT_THAT(ranks_of(resolve(reports)), ElementsAre(0));
}

TEST(Resolve, WhatOneThatIsOutSaysOfThoseThatCameDoesNotCount) {
  const Reports reports = {{Rank{0}, lost({2})}, {Rank{1}, lost({2})}, {Rank{2}, lost({1})}};
  EXPECT_THAT(ranks_of(resolve(reports)), ElementsAre(2));
}

TEST(Resolve, WhoIsNamedIsOutAndNamesNobody) {
  EXPECT_THAT(ranks_of(resolve({{Rank{0}, lost({1}, Kind::kNamed)}, {Rank{1}, lost({0}, Kind::kNamed)}})),
              ElementsAre(1));
  EXPECT_THAT(ranks_of(resolve({{Rank{0}, lost({0}, Kind::kNamed)}, {Rank{1}, {}}})), ElementsAre(0));
}

TEST(CanDecide, OnceAllHaveComeOrCannotCome) {
  const Reports two = {{Rank{0}, {}}, {Rank{1}, {}}};
  EXPECT_TRUE(can_decide(ranks_below(2), two));
  EXPECT_FALSE(can_decide(ranks_below(3), two));
  EXPECT_TRUE(can_decide(ranks_below(5), {{Rank{4}, lost({0, 1, 2, 3}, Kind::kDead)}}));
  EXPECT_TRUE(can_decide(ranks_below(2), {{Rank{1}, lost({0}, Kind::kNamed)}}));
}

TEST(CanDecide, WithoutThoseThatAreOnlySuspectedIfTheyAreFewer) {
  EXPECT_TRUE(can_decide(ranks_below(3), {{Rank{1}, lost({0})}, {Rank{2}, {}}}));
  EXPECT_FALSE(can_decide(ranks_below(3), {{Rank{2}, lost({0, 1})}}));
  // One half, if it has the lowest rank.
  EXPECT_TRUE(can_decide(ranks_below(2), {{Rank{0}, lost({1})}}));
  EXPECT_FALSE(can_decide(ranks_below(2), {{Rank{1}, lost({0})}}));
}

// Ranks as threads over one store.
class Meeting : public ::testing::Test {
 protected:
  Agreement at(int rank, int members, Losses losses, Duration patience = 30s) {
    return {{.prefix = "round",
             .rank = Rank{rank},
             .members = ranks_below(members),
             .patience = patience,
             .losses = [losses = std::move(losses)] { return losses; }},
            store_,
            Clock::steady()};
  }
  store::HashStore store_;
};

TEST_F(Meeting, AllWhoComeGetTheSameListAndGo) {
  std::vector<std::thread> ranks;
  for (const int rank : {0, 2, 3}) {
    ranks.emplace_back([this, rank] {
      Agreement agreement = at(rank, 4, rank == 2 ? lost({1}, Kind::kDead) : Losses());
      auto left = agreement.decide();
      ASSERT_OK(left.status());
      EXPECT_THAT(*left, ElementsAre(Rank{0}, Rank{2}, Rank{3}));
      auto verdict = agreement.settle({});
      ASSERT_OK(verdict.status());
      EXPECT_EQ(*verdict, Agreement::Verdict::kGo);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(Meeting, OneThatComesLateIsLeftOutAndToldWhy) {
  Agreement early = at(0, 2, {}, 100ms);
  auto left = early.decide();
  ASSERT_OK(left.status());
  EXPECT_THAT(*left, ElementsAre(Rank{0}));
  const Status late = at(1, 2, {}).decide().status();
  EXPECT_EQ(late.failure(), Failure::kLeftOut);
  EXPECT_THAT(late, StatusIs(Code::kDisconnected,
                             HasSubstr("rank 1 was left out of the world when it was shrunk to rank 0: it "
                                       "did not come within 100")));
}

TEST_F(Meeting, OneThatWithdrawsIsNotWaitedFor) {
  ASSERT_OK(at(1, 2, {}).withdraw("it has no memory"));
  Agreement other = at(0, 2, {});
  auto left = other.decide();
  ASSERT_OK(left.status());
  EXPECT_THAT(*left, ElementsAre(Rank{0}));
}

TEST_F(Meeting, OneThatFailsOrIsLostBeforeItIsReadySendsAllIntoAnotherRound) {
  for (const bool fails : {true, false}) {
    Agreement first_one = at(0, 2, {});
    Agreement second = at(1, 2, {});
    std::thread other([&second] { EXPECT_OK(second.decide().status()); });
    EXPECT_OK(first_one.decide().status());
    other.join();
    if (fails) {
      EXPECT_EQ(*second.settle(Status::timeout("no")), Agreement::Verdict::kAgain);
      EXPECT_EQ(*first_one.settle({}), Agreement::Verdict::kAgain);
    } else {
      Agreement bereaved = at(0, 2, lost({1}, Kind::kDead));
      EXPECT_OK(bereaved.decide().status());
      EXPECT_EQ(*bereaved.settle({}), Agreement::Verdict::kAgain);
    }
    auto keys = store_.list_keys();
    ASSERT_OK(keys.status());
    for (const std::string& key : *keys) ASSERT_OK(store_.delete_key(key).status());
  }
}

}  // namespace
}  // namespace lockstep::backend
