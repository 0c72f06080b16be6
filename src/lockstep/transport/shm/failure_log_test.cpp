#include "lockstep/transport/shm/failure_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "lockstep/base/text.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::transport::shm {
namespace {

using namespace std::chrono_literals;

constexpr Duration kLimit = 1min;

Status died(int rank, std::uint64_t sequence) {
  return Status::disconnected(cat("rank ", rank, " died"),
                              {.failure = Failure::kPeerDied, .peer = Rank{rank}, .sequence = sequence});
}

// As if the first failure had been recorded so long ago.
void make_older(FailureLog& log, Duration by) {
  FailureLog::Record& first = log.records[0];
  first.at -= by.count();
  first.seal = first.sealed();
}

// Who found that it is not final yet may have been kept from writing until it was.
TEST(FailureLog, WhatIsWrittenAfterTheHostsHaveAgreedDoesNotCount) {
  const auto log = std::make_unique<FailureLog>();
  ASSERT_TRUE(log->record(died(1, 7)));
  ASSERT_TRUE(log->claim_telling(kLimit));
  EXPECT_TRUE(log->merge(died(1, 6), kLimit));
  log->end_telling(true);
  EXPECT_TRUE(log->is_final(kLimit));
  for (FailureLog::Record& record : log->records) EXPECT_FALSE(record.write(died(1, 5)));
  EXPECT_EQ(log->earliest(kLimit).cause(), died(1, 6).cause());
}

TEST(FailureLog, WhatCameWhileOneAskedCountsAlsoAfterItCouldNotGoOn) {
  const auto log = std::make_unique<FailureLog>();
  ASSERT_TRUE(log->record(died(1, 7)));
  ASSERT_TRUE(log->claim_telling(kLimit));
  make_older(*log, 2 * kLimit);
  EXPECT_TRUE(log->merge(died(1, 6), kLimit));
  log->give_back_telling();
  EXPECT_FALSE(log->is_final(kLimit));
  EXPECT_EQ(log->earliest(kLimit).cause(), died(1, 6).cause());
  EXPECT_TRUE(log->claim_telling(kLimit));
  EXPECT_FALSE(log->claim_telling(kLimit));
  EXPECT_FALSE(log->is_final(kLimit));
  log->end_telling(true);
  EXPECT_TRUE(log->is_final(kLimit));
  EXPECT_EQ(log->earliest(kLimit).cause(), died(1, 6).cause());
}

TEST(FailureLog, WhoBeganTooLateMayGiveItBackToo) {
  const auto log = std::make_unique<FailureLog>();
  ASSERT_TRUE(log->record(died(1, 7)));
  make_older(*log, 2 * kLimit);
  ASSERT_TRUE(log->claim_telling(kLimit));
  log->give_back_telling();
  EXPECT_TRUE(log->is_final(kLimit));
  EXPECT_TRUE(log->claim_telling(kLimit));
}

}  // namespace
}  // namespace lockstep::transport::shm
