// Ranks that leave a group, and those who wait for their messages.
#include "lockstep/testing/fake_clock.h"
#include "lockstep/testing/status_matchers.h"
#include "lockstep/transport/messages/messages_test_support.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr std::uint64_t kGroup = 1;

class MessengerDepartures : public ::testing::TestWithParam<Medium> {
 protected:
  static void leave(Messenger& messenger) {
    messenger.fail_group(kGroup, Status::aborted("it was destroyed", {.failure = Failure::kClosed}));
    messenger.leave_group(kGroup);
  }
  // Rank 0 waits so long that it asks.
  void wait_long() { clock_.advance(150ms); }
  OutcomeFuture expect(std::optional<int> from, const Label& label = {}) {
    return recv(ranks_[0], from, bytes_, ranks_.soon(), label);
  }
  static void expect_left(OutcomeFuture receive) {
    const Status status = await(std::move(receive)).status;
    EXPECT_THAT(status, StatusIs(Code::kAborted, HasSubstr("rank 0: recv of 4 B from rank 1 (tag 0): rank 1 "
                                                           "has left the group.")));
    EXPECT_EQ(status.failure(), Failure::kClosed);
    EXPECT_EQ(status.cause().peer, Rank(1));
  }

  FakeClock clock_;
  Ranks ranks_{3, {.medium = GetParam(), .clock = &clock_, .watch_after = 100ms}};
  Buffer bytes_ = Buffer(4);
};
INSTANTIATE_TEST_SUITE_P(Over, MessengerDepartures,
                         ::testing::Values(Medium::inproc(), Medium::tcp(), Medium::pipes()), medium_name);

TEST_P(MessengerDepartures, WhoWaitsForOneThatHasLeftHearsIt) {
  leave(ranks_[1]);
  OutcomeFuture receive = expect(1);
  wait_long();
  expect_left(std::move(receive));
  expect_left(expect(1));  // it knows now
}

TEST_P(MessengerDepartures, WhoWaitsForOneThatLeavesHearsIt) {
  OutcomeFuture receive = expect(1);
  OutcomeFuture from_any = expect(std::nullopt);
  OutcomeFuture from_another = expect(2);
  OutcomeFuture in_another = expect(1, {.group = 2});
  wait_long();
  // The question was heard when this has come after it.
  ASSERT_OK(await(send(ranks_[0], 1, pattern(4, 1), ranks_.soon(), {.group = 3})));
  ASSERT_OK(await(recv(ranks_[1], 0, bytes_, ranks_.soon(), {.group = 3})).status);
  EXPECT_FALSE(is_done(receive));
  leave(ranks_[1]);
  expect_left(std::move(receive));
  // Whom it does not concern waits on.
  for (OutcomeFuture* const other : {&from_any, &from_another, &in_another}) EXPECT_FALSE(is_done(*other));
  ASSERT_OK(await(send(ranks_[1], 0, pattern(4, 1), ranks_.soon(), {.group = 2})));
  EXPECT_OK(await(std::move(in_another)).status);
  ASSERT_OK(await(send(ranks_[2], 0, pattern(4, 2), ranks_.soon())));
  EXPECT_EQ(await(std::move(from_any)).source, Rank(2));
  ASSERT_OK(await(send(ranks_[2], 0, pattern(4, 2), ranks_.soon())));
  EXPECT_OK(await(std::move(from_another)).status);
}

TEST_P(MessengerDepartures, WhoWaitsForAnybodyHearsThatAllOthersHaveLeft) {
  const auto others = std::make_shared<const std::vector<Rank>>(std::vector{Rank(1), Rank(2)});
  const auto expect_any = [&] { return recv(ranks_[0], std::nullopt, bytes_, ranks_.soon(), {}, others); };
  OutcomeFuture served = expect_any();
  OutcomeFuture not_served = expect_any();
  wait_long();
  leave(ranks_[1]);
  ASSERT_OK(await(send(ranks_[2], 0, pattern(4, 2), ranks_.soon())));
  EXPECT_EQ(await(std::move(served)).source, Rank(2));
  EXPECT_FALSE(is_done(not_served));
  leave(ranks_[2]);
  const Status status = await(std::move(not_served)).status;
  EXPECT_THAT(status, StatusIs(Code::kAborted, HasSubstr("rank 0: recv of 4 B from any rank (tag 0): all "
                                                         "other ranks have left the group.")));
  EXPECT_EQ(status.failure(), Failure::kClosed);
  EXPECT_EQ(await(expect_any()).status.failure(), Failure::kClosed);  // it knows now
}

TEST_P(MessengerDepartures, WhoWaitsForAnybodyHearsThatAllOthersAreGone) {
  const auto others = std::make_shared<const std::vector<Rank>>(std::vector{Rank(1), Rank(2)});
  OutcomeFuture receive = recv(ranks_[0], std::nullopt, bytes_, ranks_.soon(), {}, others);
  leave(ranks_[1]);
  wait_long();
  // The second was asked when this has come after it.
  OutcomeFuture other = expect(2);
  wait_long();
  ranks_.leave(2);
  EXPECT_FALSE(await(std::move(other)).status.ok());
  EXPECT_FALSE(await(std::move(receive)).status.ok());
}

TEST_P(MessengerDepartures, WhatWasSentBeforeIsReceived) {
  OutcomeFuture other = expect(1, {.tag = 5});
  wait_long();
  const Buffer sent = pattern(4, 9);
  ASSERT_OK(await(send(ranks_[1], 0, sent, ranks_.soon())));
  leave(ranks_[1]);
  EXPECT_EQ(await(std::move(other)).status.failure(), Failure::kClosed);
  EXPECT_OK(await(expect(1)).status);
  EXPECT_EQ(bytes_, sent);
  expect_left(expect(1));
}

TEST_P(MessengerDepartures, WhoEndsItsGroupTooIsToldItsOwnReason) {
  OutcomeFuture receive = expect(1);
  ranks_[0].fail_group(kGroup, Status::aborted("enough"));
  EXPECT_THAT(await(std::move(receive)).status, StatusIs(Code::kAborted, HasSubstr("enough")));
  leave(ranks_[1]);
  wait_long();
  EXPECT_THAT(await(expect(1)).status, StatusIs(Code::kAborted, HasSubstr("enough")));
}

TEST_P(MessengerDepartures, AGroupThatHasFailedThereIsSaidToHaveFailed) {
  OutcomeFuture receive = expect(1);
  ranks_[1].fail_group(kGroup, Status::internal("it broke", {.failure = Failure::kNoMemory}));
  wait_long();
  const Status status = await(std::move(receive)).status;
  EXPECT_THAT(status, StatusIs(Code::kDisconnected, HasSubstr("the group has failed on rank 1")));
  EXPECT_EQ(status.failure(), Failure::kRemoteError);
}

}  // namespace
}  // namespace lockstep::testing
