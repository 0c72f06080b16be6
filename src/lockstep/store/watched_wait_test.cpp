#include "lockstep/store/watched_wait.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "lockstep/store/hash_store.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::store {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::StatusIs;

const std::vector<std::string> kKeys = {"a", "b"};

TEST(WatchedWait, GivesTheValuesOnceAllAreThere) {
  HashStore store;
  ASSERT_OK(store.set("a", bytes_of("1")));
  std::thread later([&] { ASSERT_OK(store.set("b", bytes_of("2"))); });
  auto values = watched_get(store, kKeys, Clock::steady().in(30s), {});
  later.join();
  ASSERT_OK(values.status());
  EXPECT_EQ(text_of((*values)[0]), "1");
  EXPECT_EQ(text_of((*values)[1]), "2");
}

TEST(WatchedWait, EndsWithWhatTheLookFinds) {
  HashStore store;
  int looks = 0;
  const Status status = watched_wait(store, kKeys, Clock::steady().in(30s), [&looks] {
    return ++looks < 2 ? Status() : Status::disconnected("rank 3 died", {.failure = Failure::kPeerDied});
  });
  EXPECT_THAT(status, StatusIs(Code::kDisconnected, HasSubstr("rank 3 died")));
  EXPECT_EQ(looks, 2);
}

TEST(WatchedWait, EndsAtItsDeadline) {
  HashStore store;
  EXPECT_EQ(watched_wait(store, kKeys, Clock::steady().in(150ms), [] { return Status(); }).code(),
            Code::kTimeout);
}

TEST(WatchedCall, IsMadeAgainUntilItIsAnswered) {
  int calls = 0;
  const auto answer = watched_call(Clock::steady().in(30s), {}, [&](const Deadline& until) -> Result<int> {
    if (++calls < 3) return Status::timeout("not yet");
    EXPECT_FALSE(until.expired());
    return calls;
  });
  ASSERT_OK(answer.status());
  EXPECT_EQ(*answer, 3);
}

TEST(WatchedCall, EndsWithWhatTheLookFindsOrAtItsDeadline) {
  const auto silent = [](const Deadline&) { return Status::timeout("no answer"); };
  const auto lost = [] { return Status::disconnected("rank 0 died", {.failure = Failure::kPeerDied}); };
  EXPECT_EQ(watched_call(Clock::steady().in(30s), lost, silent).failure(), Failure::kPeerDied);
  EXPECT_EQ(watched_call(Clock::steady().in(10ms), {}, silent).code(), Code::kTimeout);
}

}  // namespace
}  // namespace lockstep::store
