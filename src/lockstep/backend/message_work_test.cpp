#include "lockstep/backend/message_work.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/testing/status_matchers.h"
#include "lockstep/transport/messages/progress.h"

namespace lockstep::backend {
namespace {

using lockstep::testing::StatusIs;

TEST(MessageWork, ACallbackThatThrowsKeepsNoOtherFromBeingTold) {
  using transport::messages::Progress;
  const auto progress = std::make_shared<Progress>([] { return Progress::Moved::kNothing; }, nullptr,
                                                   transport::shm::Patience{});
  MessageWork work({.op = "recv", .rank = Rank{0}, .sequence = 1}, nullptr, Clock::steady(), progress);
  int told = 0;
  for (const char* const what : {"first", "", "last", ""}) {
    work.on_complete([&told, what = std::string(what)](const Status& status) {
      EXPECT_THAT(status, StatusIs(Code::kAborted));
      ++told;
      if (!what.empty()) throw std::runtime_error(what);
    });
  }
  std::string thrown;
  try {
    work.complete(Status::aborted("it is over"), std::nullopt);
  } catch (const std::runtime_error& error) {
    thrown = error.what();
  }
  EXPECT_EQ(thrown, "last");
  EXPECT_EQ(told, 4);
  work.complete({}, Rank{1});  // only the first time counts
  EXPECT_THAT(work.status(), StatusIs(Code::kAborted));
}

}  // namespace
}  // namespace lockstep::backend
