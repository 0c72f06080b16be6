#include "lockstep/store/membership.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "lockstep/base/handshake.h"
#include "lockstep/base/status_bytes.h"
#include "lockstep/base/text.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/store/liveness.h"
#include "lockstep/testing/fake_clock.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::store {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FailureIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::StatusIs;
using Joined = Result<std::unique_ptr<Membership>>;

// Ranks as threads on one HashStore and a clock that the test moves.
class MembershipTest : public ::testing::Test {
 protected:
  JoinRequest request(int rank, int size) {
    JoinRequest out;
    out.self.world_size = WorldSize{size};
    out.self.member.rank = Rank{rank};
    out.self.member.host = {cat("node", rank), "boot", 1, 2, 3};
    out.is_gone = [this](const Member& member) { return gone_.contains(member.host.name); };
    return out;
  }
  Joined join(JoinRequest request) {
    return Membership::join(store_, std::move(request), clock_.in(seconds(30)));
  }
  Joined join(int rank, int size) { return join(request(rank, size)); }

  // Each request on its own thread; the answers in their order.
  std::vector<Joined> join_all(std::vector<JoinRequest> requests) {
    std::vector<Joined> out;
    for (std::size_t i = 0; i < requests.size(); ++i) out.emplace_back(Status::internal("not joined"));
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < requests.size(); ++i)
      threads.emplace_back([&, i] { out[i] = join(std::move(requests[i])); });
    for (std::thread& thread : threads) thread.join();
    return out;
  }
  std::vector<Joined> join_all(int size) {
    std::vector<JoinRequest> requests;
    for (int rank = 0; rank < size; ++rank) requests.push_back(request(rank, size));
    return join_all(std::move(requests));
  }

  // Returns once `rank` has claimed its slot in `round`.
  void wait_for_slot(int rank, std::uint64_t round = 0) {
    const std::string slot[] = {RoundKeys("default", 0, round).slot(Rank{rank})};
    ASSERT_OK(store_->wait(slot, Clock::steady().in(seconds(20))));
  }
  void wait_for_arrivals(int count, std::uint64_t round = 0) {
    const std::string key = RoundKeys("default", 0, round).arrived();
    const Deadline deadline = Clock::steady().in(seconds(20));
    while (!deadline.expired()) {
      const auto arrived = store_->add(key, 0);
      ASSERT_OK(arrived);
      if (*arrived >= count) return;
      std::this_thread::yield();
    }
    FAIL() << "fewer than " << count << " have arrived";
  }

  testing::FakeClock clock_;
  std::shared_ptr<Store> store_ =
      std::make_shared<HashStore>(StoreOptions{.timeout = seconds(30), .clock = &clock_});
  std::set<std::string> gone_;  // hosts whose processes are dead
};

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

TEST_F(MembershipTest, AWorldWhoseProcessesWereKilledIsHistory) {
  std::vector<Joined> killed = join_all(3);
  gone_ = {"node0", "node1", "node2"};
  std::vector<JoinRequest> fresh;
  for (int rank = 0; rank < 2; ++rank) {
    fresh.push_back(request(rank, 2));
    fresh.back().self.member.host.name = cat("new", rank);
  }
  for (const Joined& one : join_all(std::move(fresh))) EXPECT_OK(one);
}

TEST_F(MembershipTest, ARoundWhoseFounderWasKilledIsHistory) {
  const RoundKeys keys("default", 0, 0);
  MemberRecord dead = request(1, 2).self;
  dead.version = base::kWireVersion;
  dead.member.host.name = "dead";
  gone_ = {"dead"};
  ASSERT_OK(store_->set(keys.founder(), write_member(dead)));
  ASSERT_OK(store_->set(keys.slot(Rank{1}), write_member(dead)));
  for (const Joined& one : join_all(2)) {
    ASSERT_OK(one);
    EXPECT_EQ((*one)->keys().round(), 1U);
  }
}

TEST_F(MembershipTest, WhoWaitsWithADeadFounderHearsThatItDied) {
  const RoundKeys keys("default", 0, 0);
  MemberRecord dead = request(2, 3).self;
  dead.version = base::kWireVersion;
  dead.member.host.name = "dead";
  ASSERT_OK(store_->set(keys.founder(), write_member(dead)));
  ASSERT_OK(store_->set(keys.slot(Rank{2}), write_member(dead)));
  std::thread waiting([this] {
    EXPECT_THAT(join(0, 3), StatusIs(Code::kDisconnected, HasSubstr("rank 2 (host dead, pid 0) died while")));
  });
  wait_for_arrivals(1);
  JoinRequest newcomer = request(2, 3);
  newcomer.is_gone = [](const Member& member) { return member.host.name == "dead"; };
  std::thread next([&] { EXPECT_THAT(join(newcomer), FailureIs(Failure::kMissingRanks)); });
  waiting.join();
  wait_for_arrivals(1, 1);
  clock_.advance(seconds(30));
  next.join();
}

// A founder that died while others wait; `start_time` is that of whoever comes afterwards.
class LateRankTest : public MembershipTest {
 protected:
  void leave_dead_founder() {
    MemberRecord dead = request(0, 3).self;
    dead.version = base::kWireVersion;
    dead.member.host.name = "dead";
    ASSERT_OK(store_->set(keys_.founder(), write_member(dead)));
    ASSERT_OK(store_->set(keys_.slot(Rank{0}), write_member(dead)));
  }
  const RoundKeys keys_{"default", 0, 0};
};

TEST_F(LateRankTest, HearsTheFailureThatTheOthersHearNow) {
  leave_dead_founder();
  std::thread waiting([this] { EXPECT_THAT(join(1, 3), FailureIs(Failure::kPeerDied)); });
  wait_for_arrivals(1);
  JoinRequest late = request(2, 3);
  late.is_gone = [](const Member& member) { return member.host.name == "dead"; };
  EXPECT_THAT(join(late), StatusIs(Code::kDisconnected, HasSubstr("rank 0 (host dead, pid 0) died while")));
  waiting.join();
  // Its next attempt is a new one.
  std::thread next([&] { EXPECT_THAT(join(late), FailureIs(Failure::kMissingRanks)); });
  wait_for_arrivals(1, 1);
  clock_.advance(seconds(30));
  next.join();
}

TEST_F(LateRankTest, HearsTheFailureThatTheOthersHaveHeardAndEndedBy) {
  leave_dead_founder();
  std::thread waiting([this] { EXPECT_THAT(join(1, 3), FailureIs(Failure::kPeerDied)); });
  wait_for_arrivals(1);
  ASSERT_OK(store_->compare_set(
      keys_.verdict(), {},
      write_verdict(Status::disconnected("rank 0 died", {.failure = Failure::kPeerDied}))));
  waiting.join();
  gone_ = {"dead", "node1"};
  EXPECT_THAT(join(2, 3), StatusIs(Code::kDisconnected, HasSubstr("rank 0 died")));
}

TEST_F(LateRankTest, OfAJobThatWasStartedAgainIsInTheNextRound) {
  leave_dead_founder();
  ASSERT_OK(store_->set(keys_.verdict(),
                        write_verdict(Status::disconnected("rank 0 died", {.failure = Failure::kPeerDied}))));
  // Heard before this process began.
  ASSERT_OK(store_->set(keys_.heard("boot"), bytes_of("1")));
  gone_ = {"dead"};
  for (const Joined& one : join_all(3)) {
    ASSERT_OK(one);
    EXPECT_EQ((*one)->keys().round(), 1U);
  }
}

// Notes what it is told.
class NotedWills final : public Wills {
 public:
  Status set_will(std::string_view key, ByteView value, When) override {
    if (value.empty()) {
      wills_.erase(std::string(key));
    } else {
      wills_[std::string(key)] = Buffer(value.begin(), value.end());
    }
    return {};
  }
  const std::map<std::string, Buffer>& wills() const { return wills_; }

 private:
  std::map<std::string, Buffer> wills_;
};

TEST_F(MembershipTest, AStoreThatSeesItsClientsEndIsToldWhatToSayUntilTheWorldIsMade) {
  NotedWills wills;
  JoinRequest first = request(0, 1);
  first.wills = &wills;
  Joined joined = join(first);
  ASSERT_OK(joined);
  const RoundKeys& keys = (*joined)->keys();
  ASSERT_TRUE(wills.wills().contains(keys.verdict()));
  ASSERT_TRUE(wills.wills().contains(keys.set_up_failed()));
  EXPECT_THAT(base::parse_status(wills.wills().at(keys.set_up_failed())),
              StatusIs(Code::kDisconnected,
                       HasSubstr("rank 0 died while the world was being made (host node0, pid ")));
  (*joined)->settle();
  EXPECT_THAT(wills.wills(), IsEmpty());
}

TEST_F(MembershipTest, WhoGivesUpLeavesNoWill) {
  NotedWills wills;
  JoinRequest first = request(0, 2);
  first.wills = &wills;
  std::thread alone([&] { EXPECT_THAT(join(first), FailureIs(Failure::kMissingRanks)); });
  wait_for_arrivals(1);
  clock_.advance(seconds(30));
  alone.join();
  EXPECT_THAT(wills.wills(), IsEmpty());
}

TEST_F(MembershipTest, AStaleEpochIsRejectedAndTheJobGoesOn) {
  const auto epoch = [this](int rank, std::uint64_t number) {
    JoinRequest out = request(rank, 2);
    out.epoch = number;
    return out;
  };
  std::thread old_rank([&] { EXPECT_THAT(join(epoch(0, 4)), FailureIs(Failure::kRejected)); });
  const std::string arrived = RoundKeys("default", 4, 0).slot(Rank{0});
  ASSERT_OK(store_->get(arrived, Clock::steady().in(seconds(20))));
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

TEST_F(MembershipTest, AStoreThatEndsWithARankStaysUntilAllHaveReadTheVerdict) {
  JoinRequest serving = request(0, 2);
  serving.store_ends = StoreEnds::kWithThisRank;
  std::atomic<bool> server_returned = false;
  std::thread server([&] {
    const Joined joined = join(serving);
    ASSERT_OK(joined);
    server_returned = true;
  });
  wait_for_slot(0);
  // A rank that has claimed its slot and arrived, but has not read the verdict.
  const RoundKeys keys("default", 0, 0);
  MemberRecord slow = request(1, 2).self;
  slow.version = base::kWireVersion;
  ASSERT_OK(store_->set(keys.slot(Rank{1}), write_member(slow)));
  wait_for_arrivals(1);
  ASSERT_OK(store_->add(keys.arrived(), 1));
  ASSERT_OK_AND_ASSIGN(const Buffer founder, store_->get(keys.slot(Rank{0})));
  ASSERT_OK_AND_ASSIGN(const MemberRecord first, parse_member(founder));
  ASSERT_OK(store_->set(keys.verdict(), write_verdict(Members{first.member, slow.member})));
  ASSERT_OK(store_->get(keys.seen(), Clock::steady().in(seconds(20))));
  EXPECT_FALSE(server_returned);
  ASSERT_OK(store_->add(keys.seen(), 1));
  ASSERT_OK(store_->set(keys.all_seen(), {}));
  ASSERT_OK(store_->set(keys.closed(), {}));  // nor will the slow one leave
  server.join();
  EXPECT_TRUE(server_returned);
}

TEST_F(MembershipTest, AStoreThatEndsWithARankStaysUntilAllHaveLeft) {
  JoinRequest serving = request(0, 2);
  serving.store_ends = StoreEnds::kWithThisRank;
  std::vector<Joined> joined = join_all({serving, request(1, 2)});
  for (const Joined& one : joined) ASSERT_OK(one);
  std::atomic<bool> server_left = false;
  std::thread server([&] {
    EXPECT_EQ((*joined[0])->leave(), Membership::Left::kOthersRemain);
    server_left = true;
  });
  const std::string left[] = {RoundKeys("default", 0, 0).left()};
  ASSERT_OK(store_->wait(left, Clock::steady().in(seconds(20))));
  // It looks again and again for the other to leave.
  for (const std::uint64_t before = clock_.waits(); clock_.waits() < before + 3;) std::this_thread::yield();
  EXPECT_FALSE(server_left);
  EXPECT_EQ((*joined[1])->leave(), Membership::Left::kLast);
  server.join();
}

TEST_F(MembershipTest, AStoreThatEndsWithARankDoesNotWaitForEverForOneThatDied) {
  JoinRequest serving = request(0, 2);
  serving.store_ends = StoreEnds::kWithThisRank;
  std::vector<Joined> joined = join_all({serving, request(1, 2)});
  for (const Joined& one : joined) ASSERT_OK(one);
  std::thread server([&] { EXPECT_EQ((*joined[0])->leave(), Membership::Left::kOthersRemain); });
  const std::string left[] = {RoundKeys("default", 0, 0).left()};
  ASSERT_OK(store_->wait(left, Clock::steady().in(seconds(20))));
  for (const std::uint64_t before = clock_.waits(); clock_.waits() == before;) std::this_thread::yield();
  clock_.advance(seconds(2));
  server.join();
}

TEST_F(MembershipTest, WhoComesAgainToAStoreThatEndsLooksForTheNext) {
  JoinRequest serving = request(0, 2);
  serving.store_ends = StoreEnds::kWithThisRank;
  std::vector<Joined> joined = join_all({serving, request(1, 2)});
  for (const Joined& one : joined) ASSERT_OK(one);
  std::thread server([&] { (*joined[0])->leave(); });
  const std::string slot[] = {RoundKeys("default", 0, 0).slot(Rank{0})};
  while (*store_->check(slot)) std::this_thread::yield();
  (*joined[1])->leave();
  JoinPhase reached = JoinPhase::kArrived;
  const Joined again = Membership::join(store_, request(1, 2), clock_.in(seconds(30)), &reached);
  server.join();
  EXPECT_THAT(again, FailureIs(Failure::kStoreLost));
  EXPECT_EQ(reached, JoinPhase::kLooking);
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

TEST(Liveness, ThisProcessLivesAndAnOldStartTimeDoesNot) {
  const base::HostIdentity here{"h", "boot", 1, 2, 3};
  Member self;
  self.host = here;
  self.pid = ::getpid();
  self.start_time = process_start_time(self.pid).value_or(0);
  EXPECT_GT(self.start_time, 0U);
  EXPECT_FALSE(is_certainly_gone(self, here));
  self.start_time -= 1;
  EXPECT_TRUE(is_certainly_gone(self, here)) << "the pid was used again";
  self.host.boot_id = "another boot";
  EXPECT_FALSE(is_certainly_gone(self, here)) << "of another host nothing is certain";
  self.host = here;
  self.host.pid_namespace = 4;
  EXPECT_FALSE(is_certainly_gone(self, here));
}

TEST(Liveness, AChildThatHasEndedIsGoneAlsoBeforeItIsWaitedFor) {
  const base::HostIdentity here{"h", "boot", 1, 2, 3};
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte;
    ::close(pipe_ends[1]);
    ::_exit(::read(pipe_ends[0], &byte, 1) == 1 ? 0 : 1);
  }
  Member member;
  member.host = here;
  member.pid = child;
  member.start_time = process_start_time(child).value_or(0);
  EXPECT_FALSE(is_certainly_gone(member, here));
  ASSERT_EQ(::write(pipe_ends[1], "x", 1), 1);
  siginfo_t info;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(is_certainly_gone(member, here)) << "a zombie";
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED), 0);
  EXPECT_TRUE(is_certainly_gone(member, here));
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
}

}  // namespace
}  // namespace lockstep::store
