#include "lockstep/testing/status_matchers.h"

#include <gtest/gtest-spi.h>

#include <memory>
#include <string>

namespace lockstep::testing {
namespace {

using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pointee;

Status peer_died() { return Status::disconnected("rank 1: rank 2 is gone", {.failure = Failure::kPeerDied}); }

TEST(StatusMatchers, TellOkFromError) {
  EXPECT_THAT(Status(), IsOk());
  EXPECT_THAT(Result<int>(3), IsOk());
  EXPECT_THAT(peer_died(), Not(IsOk()));
  EXPECT_THAT(Result<int>(peer_died()), Not(IsOk()));
}

TEST(StatusMatchers, ComparesCodeMessageAndFailure) {
  EXPECT_THAT(peer_died(), StatusIs(Code::kDisconnected));
  EXPECT_THAT(peer_died(), StatusIs(Code::kDisconnected, HasSubstr("rank 2")));
  EXPECT_THAT(peer_died(), FailureIs(Failure::kPeerDied));
  EXPECT_THAT(Result<int>(peer_died()), FailureIs(Failure::kPeerDied));
  EXPECT_THAT(peer_died(), Not(StatusIs(Code::kTimeout)));
  EXPECT_THAT(peer_died(), Not(StatusIs(Code::kDisconnected, HasSubstr("rank 3"))));
  EXPECT_THAT(peer_died(), Not(FailureIs(Failure::kPeerStalled)));
  EXPECT_THAT(Status(), StatusIs(Code::kOk));
}

TEST(StatusMatchers, LooksIntoTheValueAlsoOfATypeThatOnlyMoves) {
  EXPECT_THAT(Result<int>(3), IsOkAnd(Eq(3)));
  EXPECT_THAT(Result<int>(3), Not(IsOkAnd(Eq(4))));
  EXPECT_THAT(Result<int>(peer_died()), Not(IsOkAnd(Eq(3))));
  EXPECT_THAT(Result<std::unique_ptr<int>>(std::make_unique<int>(3)), IsOkAnd(Pointee(3)));
}

TEST(StatusMatchers, AFailedAssertionPrintsTheErrorAndItsPlace) {
  EXPECT_NONFATAL_FAILURE(EXPECT_OK(peer_died()), "disconnected (peer_died): rank 1: rank 2 is gone");
  EXPECT_NONFATAL_FAILURE(EXPECT_OK(peer_died()), "status_matchers_test.cpp:");
  EXPECT_FATAL_FAILURE(ASSERT_OK(peer_died()), "rank 2 is gone");
  EXPECT_NONFATAL_FAILURE(EXPECT_THAT(peer_died(), StatusIs(Code::kTimeout)), "has the code timeout");
}

TEST(StatusMatchers, AssignsTheValueOrEndsTheTest) {
  ASSERT_OK_AND_ASSIGN(const std::string value, Result<std::string>("abc"));
  EXPECT_EQ(value, "abc");
  static bool reached = false;  // EXPECT_FATAL_FAILURE sees no local variables
  static const auto fails = [] {
    ASSERT_OK_AND_ASSIGN([[maybe_unused]] const int number, Result<int>(peer_died()));
    reached = true;
  };
  EXPECT_FATAL_FAILURE(fails(), "rank 2 is gone");
  EXPECT_FALSE(reached);
}

}  // namespace
}  // namespace lockstep::testing
