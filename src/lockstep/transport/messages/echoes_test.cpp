#include "lockstep/transport/messages/echoes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "lockstep/testing/fake_clock.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::transport::messages {
namespace {

using namespace std::chrono_literals;
using testing::FailureIs;

class EchoesTest : public ::testing::Test {
 protected:
  using Future = std::future<Status>;

  Future hold(Failure failure, std::uint64_t group = 1, Duration until_deadline = 1h) {
    const auto promise = std::make_shared<std::promise<Status>>();
    Operation operation{.group = group, .deadline = clock_.now() + until_deadline};
    operation.done = [promise](const Status& status, std::optional<Rank>) { promise->set_value(status); };
    strand_->run([&] {
      echoes_.hold_on_strand(operation, Status::disconnected("an echo", {.failure = failure}), Rank(1));
    });
    return promise->get_future();
  }
  static bool is_done(const Future& future) { return future.wait_for(0s) == std::future_status::ready; }

  testing::FakeClock clock_;
  const std::unique_ptr<Loop> loop_ = Loop::start("echoes", clock_).value();
  const std::shared_ptr<Strand> strand_ = std::make_shared<Strand>([] {});
  Echoes echoes_{strand_, *loop_, {.unreachable = 2s, .failure = 3s, .other = 1s}};
};

TEST_F(EchoesTest, EachIsHeldAsLongAsWhatExplainsItMayTake) {
  Future closed = hold(Failure::kClosed);
  Future unreachable = hold(Failure::kPeerUnreachable);
  Future failed = hold(Failure::kRemoteError);
  clock_.advance(1s);
  EXPECT_THAT(closed.get(), FailureIs(Failure::kClosed));
  EXPECT_FALSE(is_done(unreachable)) << "a refused connection may be the first sign of a death";
  clock_.advance(1s);
  EXPECT_THAT(unreachable.get(), FailureIs(Failure::kPeerUnreachable));
  EXPECT_FALSE(is_done(failed)) << "its peer knows why, and so will this rank";
  clock_.advance(1s);
  EXPECT_THAT(failed.get(), FailureIs(Failure::kRemoteError));
}

TEST_F(EchoesTest, WhatEndsTheGroupMeanwhileIsTheReason) {
  Future held = hold(Failure::kPeerUnreachable);
  Future of_another = hold(Failure::kPeerUnreachable, 2);
  clock_.advance(1500ms);
  strand_->run([&] {
    echoes_.end_group_on_strand(1, Status::disconnected("rank 1 died", {.failure = Failure::kPeerDied}));
  });
  EXPECT_THAT(held.get(), FailureIs(Failure::kPeerDied));
  EXPECT_FALSE(is_done(of_another));
  strand_->run([&] { echoes_.close_on_strand(); });
  EXPECT_THAT(of_another.get(), FailureIs(Failure::kPeerUnreachable));
}

TEST_F(EchoesTest, NoneIsHeldBeyondItsOwnDeadline) {
  Future held = hold(Failure::kPeerUnreachable, 1, 1500ms);
  clock_.advance(1500ms);
  EXPECT_THAT(held.get(), FailureIs(Failure::kPeerUnreachable));
}

}  // namespace
}  // namespace lockstep::transport::messages
