#include "lockstep/store/membership.h"

#include <unistd.h>

#include <atomic>
#include <thread>

#include "lockstep/base/handshake.h"
#include "lockstep/base/text.h"
#include "lockstep/store/membership_test_support.h"

namespace lockstep::store {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FailureIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::StatusIs;

TEST_F(MembershipTest, EveryRankGetsTheSameTable) {
  for (const int size : {1, 2, 3, 8, 33}) {
    store_ = std::make_shared<HashStore>(StoreOptions{.timeout = seconds(30), .clock = &clock_});
    const std::vector<Joined> joined = join_all(size);
    for (const Joined& one : joined) {
      ASSERT_OK(one);
      EXPECT_EQ((*one)->members(), (*joined[0])->members());
    }
    const Members& members = (*joined[0])->members();
    ASSERT_EQ(members.size(), static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      const Member& member = members[static_cast<std::size_t>(rank)];
      EXPECT_EQ(member.rank, Rank{rank});
      EXPECT_EQ(member.pid, ::getpid());
      EXPECT_EQ(member.host.name, cat("node", rank));
    }
  }
}

TEST_F(MembershipTest, ARankClaimedTwiceIsHeardByBothAndByAllOthers) {
  const std::vector<Joined> joined = join_all({request(0, 3), request(1, 3), request(1, 3)});
  for (const Joined& one : joined) {
    EXPECT_THAT(one, FailureIs(Failure::kDuplicateRank));
    EXPECT_THAT(
        one, StatusIs(Code::kInvalid, AllOf(HasSubstr("Rank 1 was claimed twice"),
                                            HasSubstr(cat("by host node1, pid ", ::getpid(), ", and by")))));
    EXPECT_EQ(one.status().cause().peer, Rank{1});
    EXPECT_EQ(one.status().cause().host, "node1");
  }
}

TEST_F(MembershipTest, UnequalWorldSizesNameWhoSaidWhat) {
  std::thread founder([this] {
    const Joined joined = join(0, 4);
    EXPECT_THAT(joined, FailureIs(Failure::kWorldSizeMismatch));
    EXPECT_EQ(joined.status().cause().rank, Rank{0});
  });
  wait_for_arrivals(1);
  EXPECT_THAT(
      join(2, 3),
      StatusIs(Code::kInvalid, AllOf(HasSubstr(cat("rank 0 (host node0, pid ", ::getpid(), ") says 4")),
                                     HasSubstr(cat("rank 2 (host node2, pid ", ::getpid(), ") says 3")))));
  founder.join();
}

TEST_F(MembershipTest, ARankBeyondTheWorldIsHeardByAll) {
  std::thread founder([this] { EXPECT_THAT(join(0, 2), FailureIs(Failure::kWorldSizeMismatch)); });
  wait_for_arrivals(1);
  EXPECT_THAT(join(2, 2), StatusIs(Code::kInvalid, AllOf(HasSubstr("rank 2 (host node2, pid "),
                                                         HasSubstr("does not fit into its world of 2"))));
  founder.join();
}

TEST_F(MembershipTest, MissingRanksAreNamedAfterTheTimeoutOnEveryRank) {
  std::vector<std::thread> threads;
  for (const int rank : {0, 1, 2, 4, 5, 6, 7}) {
    threads.emplace_back([this, rank] {
      const Joined joined = join(rank, 8);
      EXPECT_THAT(joined, StatusIs(Code::kTimeout, "rank 3 of 8 missing after 30.0 s; 0-2, 4-7 are here"));
      EXPECT_THAT(joined.status().cause().missing, ElementsAre(Rank{3}));
      EXPECT_EQ(joined.status().cause().rank, Rank{rank});
    });
  }
  wait_for_arrivals(7);
  clock_.advance(seconds(30));
  for (std::thread& thread : threads) thread.join();
}

TEST_F(MembershipTest, ALateRankHearsWhyTheOthersGaveUpAndItsRetryOpensTheNextRound) {
  std::thread early([this] { EXPECT_THAT(join(0, 2), FailureIs(Failure::kMissingRanks)); });
  wait_for_arrivals(1);
  clock_.advance(seconds(30));
  early.join();
  EXPECT_THAT(join(1, 2), StatusIs(Code::kTimeout, HasSubstr("rank 1 of 2 missing after 30.0 s; 0 is here")));
  for (const Joined& again : join_all(2)) EXPECT_OK(again);
}

TEST_F(MembershipTest, ARankThatStopsBetweenItsSlotAndItsArrivalIsNotWaitedForForEver) {
  const RoundKeys keys("default", 0, 0);
  MemberRecord stopped = request(1, 2).self;
  stopped.version = base::kWireVersion;
  stopped.member.nonce.fill(std::byte{1});
  std::thread waiting([this] {
    const Joined joined = join(0, 2);
    ASSERT_OK(joined);
    EXPECT_EQ((*joined)->members().size(), 2U);
  });
  wait_for_arrivals(1);
  ASSERT_OK(store_->set(keys.slot(Rank{1}), write_member(stopped)));
  clock_.advance(seconds(30));
  waiting.join();
}

TEST_F(MembershipTest, DifferentVersionsNameBoth) {
  JoinRequest newer = request(1, 2);
  newer.self.version = base::kWireVersion + 1;
  std::thread founder([this] { EXPECT_THAT(join(0, 2), FailureIs(Failure::kVersionMismatch)); });
  wait_for_arrivals(1);
  EXPECT_THAT(join(newer),
              StatusIs(Code::kUnsupported, AllOf(HasSubstr(cat("speaks wire version ", base::kWireVersion)),
                                                 HasSubstr(cat("rank 1 (host node1, pid ", ::getpid(),
                                                               ") speaks ", base::kWireVersion + 1)))));
  founder.join();
}

TEST_F(MembershipTest, ASecretThatOnlySomeWereGivenIsNamed) {
  JoinRequest given = request(1, 2);
  given.self.secret = SecretFrom::kGiven;
  for (const Joined& one : join_all({request(0, 2), given})) {
    EXPECT_THAT(one, FailureIs(Failure::kNoSecret));
    EXPECT_THAT(
        one, StatusIs(Code::kInvalid, AllOf(HasSubstr("has the job's secret"), HasSubstr("has no secret"))));
  }
}

TEST_F(MembershipTest, ALateDuplicateHearsItAloneAndTheWorldGoesOn) {
  const std::vector<Joined> world = join_all(2);
  EXPECT_THAT(join(1, 2), StatusIs(Code::kInvalid, AllOf(HasSubstr("Rank 1 is taken: host node1, pid "),
                                                         HasSubstr("in a world of 2 that is running"))));
  EXPECT_THAT(join(2, 3), FailureIs(Failure::kWorldSizeMismatch));
  EXPECT_EQ((*world[0])->leave(), Membership::Left::kOthersRemain);
  EXPECT_EQ((*world[1])->leave(), Membership::Left::kLast);
  EXPECT_EQ((*world[1])->leave(), Membership::Left::kLast) << "asked twice";
}

TEST_F(MembershipTest, TheLastToLeaveLeavesNothingButTheTombstones) {
  { const std::vector<Joined> world = join_all(3); }
  const RoundKeys keys("default", 0, 0);
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> left, store_->list_keys());
  EXPECT_THAT(left, ::testing::UnorderedElementsAre(keys.head(), keys.verdict(), keys.closed()));
}

TEST_F(MembershipTest, TheNextWorldMayHaveAnotherSizeOnTheSameStore) {
  for (const int size : {3, 2, 5, 1, 4}) {
    for (const Joined& one : join_all(size)) EXPECT_OK(one);
  }
}

TEST_F(MembershipTest, ARankThatComesAgainWaitsUntilTheOthersHaveLeft) {
  std::vector<Joined> world = join_all(2);
  (*world[0])->leave();
  Joined again = Status::internal("not joined");
  std::thread early([&] { again = join(0, 2); });
  // It has looked at the old round and given its slot there back before it waits.
  (*world[1])->leave();
  const Joined other = join(1, 2);
  early.join();
  ASSERT_OK(again);
  ASSERT_OK(other);
  EXPECT_EQ((*again)->members(), (*other)->members());
  EXPECT_EQ((*again)->keys().round(), 1U);
}

TEST_F(MembershipTest, AnEarlierWorldThatDoesNotEndIsNamed) {
  std::vector<Joined> world = join_all(2);
  (*world[0])->leave();
  std::atomic<bool> done = false;
  std::thread early([&] {
    const Joined joined = join(0, 2);
    EXPECT_THAT(joined, StatusIs(Code::kTimeout,
                                 AllOf(HasSubstr("rank 1 (host node1, pid "), HasSubstr("have not left"))));
    done = true;
  });
  while (!done) {
    clock_.advance(seconds(1));
    std::this_thread::yield();
  }
  early.join();
}

TEST_F(MembershipTest, AStaleEpochIsRejectedAndTheJobGoesOn) {
  const auto epoch = [this](int rank, std::uint64_t number) {
    JoinRequest out = request(rank, 2);
    out.epoch = number;
    return out;
  };
  std::thread old_rank([&] { EXPECT_THAT(join(epoch(0, 4)), FailureIs(Failure::kRejected)); });
  const std::string arrived = RoundKeys("default", 4, 0).slot(Rank{0});
  ASSERT_OK(store_->get(arrived, Clock::steady().in(seconds(60))));
  std::vector<Joined> world = join_all({epoch(0, 5), epoch(1, 5)});
  for (const Joined& one : world) EXPECT_OK(one);
  old_rank.join();
  EXPECT_THAT(join(epoch(1, 4)),
              StatusIs(Code::kAborted, AllOf(HasSubstr("epoch 4"), HasSubstr("epoch 5 has begun"))));
  EXPECT_EQ((*world[0])->leave(), Membership::Left::kOthersRemain);
}

TEST_F(MembershipTest, JobsOnOneStoreDoNotMeet) {
  std::vector<JoinRequest> requests;
  for (const char* job : {"a", "b"}) {
    for (int rank = 0; rank < 2; ++rank) {
      requests.push_back(request(rank, 2));
      requests.back().job_id = job;
      requests.back().self.member.host.name = cat(job, rank);
    }
  }
  const std::vector<Joined> joined = join_all(std::move(requests));
  for (const Joined& one : joined) ASSERT_OK(one);
  EXPECT_EQ((*joined[0])->members()[1].host.name, "a1");
  EXPECT_EQ((*joined[2])->members()[1].host.name, "b1");
}

TEST_F(MembershipTest, ForeignBytesUnderItsKeysAreAnErrorNotACrash) {
  const RoundKeys keys("default", 0, 0);
  ASSERT_OK(store_->set(keys.founder(), bytes_of("hello")));
  EXPECT_THAT(join(0, 2), FailureIs(Failure::kCorruptFrame));
  ASSERT_OK(store_->set(keys.head(), bytes_of("hello")));
  EXPECT_THAT(join(0, 2), StatusIs(Code::kInvalid, HasSubstr("another program writes to it")));
}

TEST_F(MembershipTest, WorldsThatCannotBeAreRefusedBeforeTheStoreIsTouched) {
  EXPECT_THAT(join(0, 0), FailureIs(Failure::kLimitExceeded));
  EXPECT_THAT(join(0, kMaxWorldSize + 1), FailureIs(Failure::kLimitExceeded));
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> keys, store_->list_keys());
  EXPECT_THAT(keys, IsEmpty());
}

}  // namespace
}  // namespace lockstep::store
