#include "lockstep/launch/shared_log.h"

#include <gmock/gmock.h>

#include "lockstep/store/hash_store.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::launch {
namespace {

using ::lockstep::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SharedLogTest : public ::testing::Test {
 protected:
  static AgentMessage done(int node) { return {.kind = AgentMessage::Kind::kDone, .node = node}; }
  static Deadline now() { return Clock::steady().in(Duration::zero()); }
  Status append(SharedLog& log, int node) {
    return log.append(done(node), Clock::steady().in(std::chrono::seconds(60)));
  }
  // The nodes whose messages the log still has for this reader.
  static std::vector<int> rest(SharedLog& log) {
    std::vector<int> nodes;
    for (auto entry = log.read(now()); entry.ok() && *entry; entry = log.read(now())) {
      nodes.push_back((*entry)->node);
    }
    return nodes;
  }

  store::HashStore store_;
};

TEST_F(SharedLogTest, AllReadTheSameMessagesInTheSameOrder) {
  SharedLog first(store_);
  SharedLog second(store_);
  ASSERT_OK(append(second, 1));
  ASSERT_OK(append(first, 0));
  EXPECT_THAT(rest(first), ElementsAre(1, 0));
  ASSERT_OK(append(second, 2));
  EXPECT_THAT(rest(first), ElementsAre(2));
  EXPECT_THAT(rest(second), ElementsAre(1, 0, 2));
}

TEST_F(SharedLogTest, AnEntryIsOneKeySoNoWriterLeavesAGap) {
  SharedLog log(store_);
  ASSERT_OK(append(log, 0));
  ASSERT_OK(append(log, 1));
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> keys, store_.list_keys());
  EXPECT_THAT(keys, ::testing::UnorderedElementsAre("log/1", "log/2"));
}

TEST_F(SharedLogTest, WhatIsNoMessageIsAnError) {
  SharedLog log(store_);
  ASSERT_OK(store_.set("log/1", bytes_of("{}")));
  EXPECT_THAT(log.read(now()), StatusIs(Code::kInvalid, HasSubstr("another version")));
}

}  // namespace
}  // namespace lockstep::launch
