#include "lockstep/backend/native/setup_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <csignal>
#include <future>
#include <memory>
#include <thread>

#include "lockstep/base/status_bytes.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/store/round_keys.h"
#include "lockstep/testing/fake_clock.h"
#include "lockstep/testing/process_world.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::backend {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

// Rank 1 of two, of whom nothing is known.
class SetupWatchTest : public ::testing::Test {
 protected:
  SetupWatchTest() {
    rendezvous_.rank = Rank{1};
    rendezvous_.world_size = WorldSize{2};
    rendezvous_.store = std::make_shared<HashStore>(store::StoreOptions{.clock = &clock_});
  }

  // What fail() gives back if `meanwhile` happens while it looks for the reason.
  template <typename Meanwhile>
  Status fail_while(const Status& met, Meanwhile meanwhile) {
    auto failed = std::async(std::launch::async, [&] { return SetupWatch(rendezvous_).fail(met); });
    while (clock_.waits() == 0) std::this_thread::yield();
    meanwhile();
    return failed.get();
  }

  testing::FakeClock clock_;
  Rendezvous rendezvous_;
};

const Status kBroken = Status::disconnected("the connection broke");
const Status kDied =
    Status::disconnected("rank 0 has died", {.failure = Failure::kPeerDied, .peer = Rank{0}});

TEST_F(SetupWatchTest, AConnectionThatBrokeIsExplainedByWhatIsHeardAMomentLater) {
  const Status status = fail_while(kBroken, [&] {
    ASSERT_TRUE(rendezvous_.store->set(store::kSetUpFailed, base::write_status(kDied)).ok());
  });
  EXPECT_EQ(status.failure(), Failure::kPeerDied);
  EXPECT_EQ(status.cause().peer, Rank{0});
}

TEST_F(SetupWatchTest, WithoutAnExplanationItIsToldAsItWasMet) {
  const Status status = fail_while(kBroken, [&] { clock_.advance(std::chrono::seconds(1)); });
  EXPECT_THAT(status.message(), HasSubstr("the connection broke"));
  EXPECT_EQ(status.cause().peer, Rank{1});
  EXPECT_TRUE(*rendezvous_.store->check({{std::string(store::kSetUpFailed)}}));
}

TEST_F(SetupWatchTest, WhatExplainsItselfIsToldAtOnce) {
  EXPECT_EQ(SetupWatch(rendezvous_).fail(kDied).failure(), Failure::kPeerDied);
  EXPECT_EQ(clock_.waits(), 0U);
}

TEST(SetupWatchOfProcesses, WhatIsKnownCountsThoughTheStoreDoesNotAnswer) {
  EXPECT_OK(testing::ProcessWorld{2}.run([](const SpawnedRank& rank) {
    const auto rendezvous = store::rendezvous({}, rank.environment);
    ASSERT_OK(rendezvous.status());
    if (rank.rank.value == 0) {
      ::kill(::getpid(), SIGSTOP);  // it serves the store
      return;
    }
    const std::string key = "answer";
    const auto answers = [&] { return rendezvous->store->check({&key, 1}, Clock::steady().in(1ms)).ok(); };
    while (answers()) std::this_thread::yield();
    EXPECT_EQ(SetupWatch(*rendezvous).fail(kDied).failure(), Failure::kPeerDied);
    ::kill(rendezvous->members[0].pid, SIGCONT);
  }));
}

}  // namespace
}  // namespace lockstep::backend
