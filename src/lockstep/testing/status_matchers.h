// GoogleTest matchers and assertions for Status and Result.
//
//   ASSERT_OK(store.set("key", value));
//   EXPECT_THAT(store.get("key"), IsOkAnd(SizeIs(3)));
//   EXPECT_THAT(status, StatusIs(Code::kTimeout, HasSubstr("rank 3")));
//   EXPECT_THAT(status, FailureIs(Failure::kPeerDied));
//   ASSERT_OK_AND_ASSIGN(auto value, store.get("key"));
//
// Each works on a Status and on a Result<T>; a mismatch prints the whole error with the place it was made.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <type_traits>

#include "lockstep/base/status.h"

namespace lockstep::base {

// Found by GoogleTest when it prints a value.
inline void PrintTo(const Status& status, std::ostream* out) {
  *out << status.text();
  if (!status.ok()) *out << " (made at " << status.where() << ')';
}
template <typename T>
void PrintTo(const Result<T>& result, std::ostream* out) {
  if (result.ok()) {
    *out << "ok: " << ::testing::PrintToString(result.value());
  } else {
    PrintTo(result.status(), out);
  }
}
inline void PrintTo(Code code, std::ostream* out) { *out << code_name(code); }
inline void PrintTo(Failure failure, std::ostream* out) { *out << failure_name(failure); }

}  // namespace lockstep::base

namespace lockstep::testing {

inline Status status_of(const Status& status) { return status; }
template <typename T>
Status status_of(const Result<T>& result) {
  return result.status();
}

// The whole of an error on one line, for a matcher's explanation.
inline std::string described(const Status& status) { return ::testing::PrintToString(status); }

MATCHER(IsOk, negation ? "is an error" : "is ok") {
  const Status status = status_of(arg);
  if (!status.ok()) *result_listener << described(status);
  return status.ok();
}

// An ok Result whose value matches.
MATCHER_P(IsOkAnd, matcher, std::string("is ") + (negation ? "not " : "") + "ok with a value that matches") {
  if (!arg.ok()) {
    *result_listener << described(arg.status());
    return false;
  }
  return ::testing::ExplainMatchResult(matcher, arg.value(), result_listener);
}

MATCHER_P(StatusIs, code, "has the code " + std::string(base::code_name(code))) {
  const Status status = status_of(arg);
  *result_listener << described(status);
  return status.code() == code;
}

MATCHER_P2(StatusIs, code, message,
           "has the code " + std::string(base::code_name(code)) + " and a message that " +
               ::testing::DescribeMatcher<std::string>(message, negation)) {
  const Status status = status_of(arg);
  *result_listener << described(status);
  return status.code() == code && ::testing::Matches(message)(std::string(status.message()));
}

MATCHER_P(FailureIs, failure, "has the failure " + std::string(base::failure_name(failure))) {
  const Status status = status_of(arg);
  *result_listener << described(status);
  return status.failure() == failure;
}

}  // namespace lockstep::testing

#define ASSERT_OK(expr) ASSERT_THAT((expr), ::lockstep::testing::IsOk())
#define EXPECT_OK(expr) EXPECT_THAT((expr), ::lockstep::testing::IsOk())

// ASSERT_OK_AND_ASSIGN(auto value, expr): the value of `expr` (a Result), or the test ends.
#define ASSERT_OK_AND_ASSIGN(declaration, expr) \
  ASSERT_OK_AND_ASSIGN_IMPL(declaration, expr, LOCKSTEP_CONCAT(assert_result_, __LINE__))
#define ASSERT_OK_AND_ASSIGN_IMPL(declaration, expr, name) \
  auto name = (expr);                                      \
  ASSERT_THAT(name, ::lockstep::testing::IsOk());          \
  declaration = std::move(name).value()
