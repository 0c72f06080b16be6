// Ranks that die, come late or leave, and a store that ends with one of them.
#include <atomic>
#include <map>
#include <thread>

#include "lockstep/base/handshake.h"
#include "lockstep/base/status_bytes.h"
#include "lockstep/base/text.h"
#include "lockstep/store/membership_test_support.h"

namespace lockstep::store {
namespace {

using testing::FailureIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::StatusIs;

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
  ASSERT_OK(store_->get(keys.seen(), Clock::steady().in(seconds(60))));
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
  ASSERT_OK(store_->wait(left, Clock::steady().in(seconds(60))));
  // It looks again and again for the other to leave.
  for (const std::uint64_t before = clock_.waits(); clock_.waits() < before + 3;) std::this_thread::yield();
  EXPECT_FALSE(server_left);
  EXPECT_EQ((*joined[1])->leave(), Membership::Left::kLast);
  server.join();
}

// Does what it is asked, but too late for an answer, once it is stopped.
class LateStore final : public Store {
 public:
  explicit LateStore(std::shared_ptr<Store> inner) : inner_(std::move(inner)) {}

  void stop() { stopped_ = true; }

  Result<std::int64_t> add(std::string_view key, std::int64_t amount, When until) override {
    return answer(inner_->add(key, amount, until));
  }
  Result<bool> delete_key(std::string_view key, When until) override {
    return answer(inner_->delete_key(key, until));
  }
  Status set(std::string_view key, ByteView value, When until) override {
    return inner_->set(key, value, until);
  }
  Result<Buffer> get(std::string_view key, When until) override { return inner_->get(key, until); }
  Result<Buffer> compare_set(std::string_view key, ByteView old, ByteView value, When until) override {
    return inner_->compare_set(key, old, value, until);
  }
  Result<bool> check(Keys keys, When until) override { return inner_->check(keys, until); }
  Status wait(Keys keys, When until) override { return inner_->wait(keys, until); }
  Result<std::int64_t> num_keys(When until) override { return inner_->num_keys(until); }
  Status append(std::string_view key, ByteView value, When until) override {
    return inner_->append(key, value, until);
  }
  Result<std::vector<Buffer>> multi_get(Keys keys, When until) override {
    return inner_->multi_get(keys, until);
  }
  Status multi_set(Keys keys, std::span<const Buffer> values, When until) override {
    return inner_->multi_set(keys, values, until);
  }
  Status queue_push(std::string_view queue, ByteView value, When until) override {
    return inner_->queue_push(queue, value, until);
  }
  Result<Buffer> queue_pop(std::string_view queue, OnEmpty on_empty, When until) override {
    return inner_->queue_pop(queue, on_empty, until);
  }
  Result<std::int64_t> queue_len(std::string_view queue, When until) override {
    return inner_->queue_len(queue, until);
  }
  Result<std::vector<std::string>> list_keys(When until) override { return inner_->list_keys(until); }
  Result<std::unique_ptr<Store>> clone(When until) override { return inner_->clone(until); }
  Duration timeout() const override { return inner_->timeout(); }
  void set_timeout(Duration timeout) override { inner_->set_timeout(timeout); }
  const Clock& clock() const override { return inner_->clock(); }
  std::string description() const override { return inner_->description(); }

 private:
  template <typename T>
  Result<T> answer(Result<T> answered) const {
    if (!stopped_) return answered;
    return Status::timeout("the store is stopped");
  }
  const std::shared_ptr<Store> inner_;
  bool stopped_ = false;
};

TEST_F(MembershipTest, AStoreThatWasStoppedKnowsAfterwardsWhoHasLeft) {
  JoinRequest serving = request(0, 2);
  serving.store_ends = StoreEnds::kWithThisRank;
  const auto late = std::make_shared<LateStore>(store_);
  Joined server = Status::internal("not joined");
  std::thread first([&] { server = join(serving); });
  Joined other = Membership::join(late, request(1, 2), clock_.in(seconds(30)));
  first.join();
  ASSERT_OK(server);
  ASSERT_OK(other);
  late->stop();
  EXPECT_EQ((*other)->leave(), Membership::Left::kUnknown);
  ASSERT_EQ(store_->add((*server)->keys().left(), 0).value(), 1);
  EXPECT_EQ((*server)->leave(), Membership::Left::kLast);  // waits for nobody
}

TEST_F(MembershipTest, AStoreThatEndsWithARankDoesNotWaitForEverForOneThatDied) {
  JoinRequest serving = request(0, 2);
  serving.store_ends = StoreEnds::kWithThisRank;
  std::vector<Joined> joined = join_all({serving, request(1, 2)});
  for (const Joined& one : joined) ASSERT_OK(one);
  std::thread server([&] { EXPECT_EQ((*joined[0])->leave(), Membership::Left::kOthersRemain); });
  const std::string left[] = {RoundKeys("default", 0, 0).left()};
  ASSERT_OK(store_->wait(left, Clock::steady().in(seconds(60))));
  for (const std::uint64_t before = clock_.waits(); clock_.waits() == before;) std::this_thread::yield();
  clock_.advance(seconds(2));
  server.join();
}

TEST_F(MembershipTest, AStoreThatEndsWithARankStaysUntilAllWorldsAreMade) {
  JoinRequest serving = request(0, 2);
  serving.store_ends = StoreEnds::kWithThisRank;
  for (const bool dies : {false, true}) {
    store_ = std::make_shared<HashStore>(StoreOptions{.timeout = seconds(30), .clock = &clock_});
    std::vector<Joined> joined = join_all({serving, request(1, 2)});
    for (const Joined& one : joined) ASSERT_OK(one);
    (*joined[0])->settle();
    std::atomic<bool> server_left = false;
    std::thread server([&] {
      EXPECT_EQ((*joined[0])->leave(), dies ? Membership::Left::kOthersRemain : Membership::Left::kLast);
      server_left = true;
    });
    // Longer than it waits for ranks that have made their world.
    for (int i = 0; i < 10; ++i) {
      for (const std::uint64_t before = clock_.waits(); clock_.waits() < before + 2;)
        std::this_thread::yield();
      clock_.advance(seconds(1));
    }
    EXPECT_FALSE(server_left);
    if (dies) {
      ASSERT_OK(store_->set((*joined[1])->keys().set_up_failed(), bytes_of("it died")));
      // The rest of its patience is for the one that will not leave.
      while (!server_left) {
        clock_.advance(seconds(1));
        std::this_thread::yield();
      }
    } else {
      ASSERT_OK(store_->add((*joined[1])->keys().left(), 1));
      (*joined[1])->settle();
    }
    server.join();
  }
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

}  // namespace
}  // namespace lockstep::store
