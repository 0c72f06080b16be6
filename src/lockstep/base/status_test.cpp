#include "lockstep/base/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

namespace lockstep::base {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Status, OkIsEmptyAndSmall) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), Code::kOk);
  EXPECT_EQ(status.text(), "ok");
  EXPECT_EQ(status.where(), "");
  EXPECT_EQ(status.cause(), Cause{});
  EXPECT_LE(sizeof(Status), 2 * sizeof(void*));
}

TEST(Status, CarriesCodeCauseMessageAndPlace) {
  const Status status = Status::disconnected(
      "rank 1 is gone", {.failure = Failure::kPeerDied, .peer = Rank{1}, .op = "barrier", .sequence = 7});
  EXPECT_EQ(status.code(), Code::kDisconnected);
  EXPECT_EQ(status.failure(), Failure::kPeerDied);
  EXPECT_EQ(status.cause().peer, Rank{1});
  EXPECT_EQ(status.cause().sequence, 7U);
  EXPECT_THAT(status.where(), StartsWith("status_test.cpp:"));
  EXPECT_EQ(status.text(), "disconnected (peer_died): rank 1 is gone");
}

TEST(Status, WithPrefixKeepsTheRest) {
  const Status inner = Status::invalid("no such key", {.failure = Failure::kLimitExceeded, .op = "get"});
  const Status outer = inner.with_prefix("store: ");
  EXPECT_EQ(outer.message(), "store: no such key");
  EXPECT_EQ(outer.code(), Code::kInvalid);
  EXPECT_EQ(outer.cause(), inner.cause());
  EXPECT_EQ(outer.where(), inner.where());
  EXPECT_TRUE(Status().with_prefix("x").ok());
  EXPECT_TRUE(Status().with_cause({}).ok());
}

TEST(Status, FromErrnoSaysWhatTheCallerCanDo) {
  struct Case {
    int error;
    Code code;
    Failure failure;
  };
  const Case kCases[] = {{EMFILE, Code::kInternal, Failure::kNoDescriptors},
                         {ENOMEM, Code::kInternal, Failure::kNoMemory},
                         {ENOSPC, Code::kInternal, Failure::kNoSpace},
                         {EADDRINUSE, Code::kInvalid, Failure::kPortTaken},
                         {ECONNRESET, Code::kDisconnected, Failure::kNone},
                         {ETIMEDOUT, Code::kTimeout, Failure::kNone},
                         {EACCES, Code::kInvalid, Failure::kNone},
                         {ENOSYS, Code::kUnsupported, Failure::kNone},
                         {EIO, Code::kInternal, Failure::kNone}};
  for (const Case& c : kCases) {
    const Status status = Status::from_errno("cannot open \"x\"", c.error);
    EXPECT_EQ(status.code(), c.code) << c.error;
    EXPECT_EQ(status.failure(), c.failure) << c.error;
    EXPECT_THAT(std::string(status.message()), StartsWith("cannot open \"x\": "));
  }
  EXPECT_THAT(std::string(Status::from_errno("x", 9999).message()), EndsWith("error 9999"));
}

TEST(Status, EveryFailureHasAName) {
  for (int i = 0; i <= static_cast<int>(Failure::kLeftOut); ++i) {
    const auto failure = static_cast<Failure>(i);
    EXPECT_NE(failure_name(failure), "unknown") << i;
    EXPECT_EQ(failure_from_name(failure_name(failure)), failure);
  }
  EXPECT_EQ(failure_from_name("nonsense"), std::nullopt);
}

Result<int> half(int value) {
  if (value % 2 != 0) return Status::invalid("odd");
  return value / 2;
}
Result<int> quarter(int value) {
  LOCKSTEP_ASSIGN(const int once, half(value));
  LOCKSTEP_ASSIGN(const int twice, half(once));
  return twice;
}
Status needs_even(int value) {
  LOCKSTEP_TRY(half(value).status());
  return {};
}

TEST(Result, MacrosPassTheValueOrReturnTheError) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_EQ(quarter(6).status().message(), "odd");
  EXPECT_TRUE(needs_even(2).ok());
  EXPECT_FALSE(needs_even(3).ok());
  EXPECT_EQ(half(3).value_or(-1), -1);
}

TEST(Result, MovesAValueThatCannotBeCopied) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(3));
  const std::unique_ptr<int> value = std::move(result).value();
  EXPECT_EQ(*value, 3);
}

TEST(ResultDeathTest, ValueOfAnErrorAbortsWithItsText) {
  EXPECT_DEATH((void)half(3).value(), HasSubstr("invalid: odd"));
  EXPECT_DEATH((void)Result<int>(Status()), HasSubstr("needs a value or an error"));
}

}  // namespace
}  // namespace lockstep::base
