#include "lockstep/transport/messages/mailbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/testing/status_matchers.h"

namespace lockstep::transport::messages {
namespace {

constexpr Key kKey{.group = 1, .tag = 2};

OperationPtr receive_from(std::optional<Rank> peer, Key key = kKey) {
  return std::make_shared<Operation>(
      Operation{.direction = Direction::kRecv, .group = key.group, .peer = peer, .tag = key.tag});
}
Arrival arrival_from(Rank source, std::uint64_t id, Key key = kKey) {
  return {.key = key, .source = source, .id = id, .asked = true};
}

TEST(Mailbox, AMessageTakesTheFirstReceiveThatWantsIt) {
  Mailbox mailbox;
  const auto named = receive_from(Rank(1));
  const auto any = receive_from({});
  const auto later = receive_from(Rank(2));
  for (const auto& receive : {named, any, later}) mailbox.post(receive);
  EXPECT_EQ(mailbox.take_receive({.group = 1, .tag = 3}, Rank(1)), nullptr);
  EXPECT_EQ(mailbox.take_receive({.group = 2, .tag = 2}, Rank(1)), nullptr);
  EXPECT_EQ(mailbox.take_receive(kKey, Rank(2)), any);
  EXPECT_EQ(mailbox.take_receive(kKey, Rank(2)), later);
  EXPECT_EQ(mailbox.take_receive(kKey, Rank(2)), nullptr);
  EXPECT_EQ(mailbox.take_receive(kKey, Rank(1)), named);
}

TEST(Mailbox, AReceiveTakesTheFirstMessageThatItWants) {
  Mailbox mailbox;
  mailbox.keep(arrival_from(Rank(1), 10));
  mailbox.keep(arrival_from(Rank(2), 20));
  mailbox.keep(arrival_from(Rank(1), 11));
  EXPECT_FALSE(mailbox.take_arrival(*receive_from(Rank(3))));
  EXPECT_FALSE(mailbox.take_arrival(*receive_from(Rank(1), {.group = 1, .tag = 3})));
  EXPECT_EQ(mailbox.take_arrival(*receive_from(Rank(2)))->id, 20);
  EXPECT_EQ(mailbox.take_arrival(*receive_from({}))->id, 10);
  EXPECT_EQ(mailbox.take_arrival(*receive_from(Rank(1)))->id, 11);
  EXPECT_FALSE(mailbox.take_arrival(*receive_from({})));
}

TEST(Mailbox, AnAskIsRemovedByItsSenderAndAMessageThatIsHereStays) {
  Mailbox mailbox;
  mailbox.keep(arrival_from(Rank(1), 10));
  mailbox.keep({.key = kKey, .source = Rank(1), .id = 11, .payload = Buffer(3)});
  mailbox.keep(arrival_from(Rank(1), 12));
  EXPECT_FALSE(mailbox.remove_ask(kKey, Rank(2), 10));
  EXPECT_FALSE(mailbox.remove_ask(kKey, Rank(1), 11));
  EXPECT_TRUE(mailbox.remove_ask(kKey, Rank(1), 10));
  EXPECT_FALSE(mailbox.remove_ask(kKey, Rank(1), 10));
  mailbox.remove_asks_from(Rank(1));
  EXPECT_EQ(mailbox.take_arrival(*receive_from(Rank(1)))->id, 11);
  EXPECT_FALSE(mailbox.take_arrival(*receive_from(Rank(1))));
}

TEST(Mailbox, WithdrawsWhatItIsTold) {
  Mailbox mailbox;
  const auto kept = receive_from(Rank(1));
  const auto withdrawn = receive_from(Rank(2), {.group = 1, .tag = 9});
  mailbox.post(kept);
  mailbox.post(withdrawn);
  const auto result = mailbox.withdraw([](const Operation& receive) {
    return receive.peer == Rank(2) ? std::optional(Status::timeout("late")) : std::nullopt;
  });
  ASSERT_EQ(result.size(), 1);
  EXPECT_EQ(result[0].first, withdrawn);
  EXPECT_THAT(result[0].second, testing::StatusIs(Code::kTimeout));
  EXPECT_EQ(mailbox.take_receive({.group = 1, .tag = 9}, Rank(2)), nullptr);
  EXPECT_EQ(mailbox.take_receive(kKey, Rank(1)), kept);
}

TEST(Mailbox, AGroupEndsWithAllThatItHasAndTheOthersStay) {
  Mailbox mailbox;
  const Key last{.group = 1, .tag = ~0ULL};
  const Key other{.group = 2, .tag = 0};
  mailbox.post(receive_from(Rank(1)));
  mailbox.keep(arrival_from(Rank(2), 1, last));
  mailbox.keep(arrival_from(Rank(2), 2, other));
  EXPECT_EQ(mailbox.ended(1), nullptr);
  const auto ended = mailbox.end_group(1, Status::aborted("first"));
  EXPECT_EQ(ended.receives.size(), 1);
  EXPECT_EQ(ended.arrivals.size(), 1);
  EXPECT_TRUE(mailbox.end_group(1, Status::aborted("second")).receives.empty());
  ASSERT_NE(mailbox.ended(1), nullptr);
  EXPECT_EQ(mailbox.ended(1)->message(), "first");
  EXPECT_EQ(mailbox.ended(2), nullptr);
  EXPECT_TRUE(mailbox.take_arrival(*receive_from({}, other)));
}

TEST(Mailbox, TenThousandGroupsThatWereLeftTakeABoundedRoom) {
  Mailbox mailbox;
  EXPECT_TRUE(mailbox.end_group(0, Status::aborted("failed, and its owner is here")).receives.empty());
  for (std::uint64_t group = 1; group <= 10'000; ++group) {
    mailbox.post(receive_from(Rank(1), {.group = group, .tag = 1}));
    mailbox.keep(arrival_from(Rank(2), group, {.group = group, .tag = 1}));
    EXPECT_EQ(mailbox.end_group(group, Status::aborted("destroyed")).receives.size(), 1U);
    mailbox.leave_group(group);
    ASSERT_NE(mailbox.ended(group), nullptr);
  }
  EXPECT_EQ(mailbox.remembered(), 1 + Mailbox::kLeft);
  EXPECT_EQ(mailbox.ended(0)->message(), "failed, and its owner is here");
  EXPECT_EQ(mailbox.ended(1), nullptr);
}

}  // namespace
}  // namespace lockstep::transport::messages
