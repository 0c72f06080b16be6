#include "lockstep/transport/messages/messenger.h"

#include "lockstep/testing/status_matchers.h"
#include "lockstep/transport/messages/messages_test_support.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using transport::messages::kEagerLimit;

class MessengerTest : public ::testing::TestWithParam<Medium> {
 protected:
  WorldSettings settings() const { return {.medium = GetParam()}; }
};

INSTANTIATE_TEST_SUITE_P(
    Over, MessengerTest,
    ::testing::Values(Medium::inproc(), Medium::tcp(), Medium::pipes(), Medium::resident(),
                      Medium::faulty("Delays", {.max_delay = std::chrono::milliseconds(1)})),
    medium_name);

TEST_P(MessengerTest, CarriesMessagesOfEverySizeWhoeverComesFirst) {
  Ranks ranks(2, settings());
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{1001}, kEagerLimit, kLarge}) {
    const Buffer sent = pattern(size, 7);
    Buffer first(size);
    Buffer second(size);
    OutcomeFuture early = recv(ranks[1], 0, first, ranks.soon());
    ASSERT_OK(await(send(ranks[0], 1, ranks.place(0, sent), ranks.soon())));
    const Outcome outcome = await(std::move(early));
    ASSERT_OK(outcome.status);
    EXPECT_EQ(outcome.source, Rank(0));
    EXPECT_EQ(first, sent);

    StatusFuture sending = send(ranks[1], 0, ranks.place(1, sent), ranks.soon());
    if (size <= kEagerLimit) sending.wait();  // a larger one waits for its receive
    ASSERT_OK(await(recv(ranks[0], 1, second, ranks.soon())).status);
    EXPECT_EQ(second, sent);
    ASSERT_OK(await(std::move(sending)));
  }
}

TEST_P(MessengerTest, KeepsTheOrderOfAKeyAndKeepsKeysApart) {
  Ranks ranks(2, settings());
  // Small ones, and large ones that have to ask, in turn.
  const auto size_of = [](int number) { return number % 2 == 0 ? std::size_t{64} : kLarge; };
  std::vector<Buffer> sent;
  std::vector<StatusFuture> sends;
  const std::vector<Label> labels{{.group = 1, .tag = 1}, {.group = 1, .tag = 2}, {.group = 2, .tag = 1}};
  for (unsigned number = 0; number < 12; ++number)
    sent.push_back(pattern(size_of(static_cast<int>(number / 3)), number));
  for (std::size_t number = 0; number < sent.size(); ++number)
    sends.push_back(send(ranks[0], 1, sent[number], ranks.soon(), labels[number % 3]));
  for (const std::size_t label : {std::size_t{2}, std::size_t{0}, std::size_t{1}}) {
    for (std::size_t number = label; number < sent.size(); number += 3) {
      Buffer received(sent[number].size());
      ASSERT_OK(await(recv(ranks[1], 0, received, ranks.soon(), labels[label])).status);
      EXPECT_EQ(received, sent[number]);
    }
  }
  for (auto& sending : sends) EXPECT_OK(await(std::move(sending)));
}

TEST_P(MessengerTest, AnySourceTakesMessagesInTheOrderOfTheirArrival) {
  Ranks ranks(4, settings());
  Buffer byte(1);
  for (const int source : {2, 0, 3}) {
    EXPECT_OK(
        await(send(ranks[source], 1, pattern(9, static_cast<unsigned>(source)), ranks.soon(), {.tag = 5})));
    // Behind it on the same connection: when this one is here, so is that.
    EXPECT_OK(await(send(ranks[source], 1, byte, ranks.soon(), {.tag = 6})));
    EXPECT_OK(await(recv(ranks[1], source, byte, ranks.soon(), {.tag = 6})).status);
  }
  for (const int source : {2, 0, 3}) {
    Buffer received(9);
    const Outcome outcome = await(recv(ranks[1], std::nullopt, received, ranks.soon(), {.tag = 5}));
    ASSERT_OK(outcome.status);
    EXPECT_EQ(outcome.source, Rank(source));
    EXPECT_EQ(received, pattern(9, static_cast<unsigned>(source)));
  }
  // A receive that waits, and one that names its sender behind it.
  Buffer any(kLarge);
  Buffer named(kLarge);
  OutcomeFuture from_any = recv(ranks[1], std::nullopt, any, ranks.soon(), {.tag = 7});
  OutcomeFuture from_three = recv(ranks[1], 3, named, ranks.soon(), {.tag = 7});
  EXPECT_OK(await(send(ranks[0], 1, pattern(kLarge, 0), ranks.soon(), {.tag = 7})));
  EXPECT_EQ(await(std::move(from_any)).source, Rank(0));
  EXPECT_OK(await(send(ranks[3], 1, pattern(kLarge, 3), ranks.soon(), {.tag = 7})));
  EXPECT_OK(await(std::move(from_three)).status);
  EXPECT_EQ(any, pattern(kLarge, 0));
  EXPECT_EQ(named, pattern(kLarge, 3));
}

TEST_P(MessengerTest, SendsToItself) {
  Ranks ranks(1, settings());
  for (const std::size_t size : {std::size_t{0}, std::size_t{100}, kLarge}) {
    const Buffer sent = pattern(size, 3);
    Buffer received(size);
    StatusFuture sending = send(ranks[0], 0, sent, ranks.soon());
    const Outcome outcome = await(recv(ranks[0], 0, received, ranks.soon()));
    ASSERT_OK(outcome.status);
    EXPECT_EQ(outcome.source, Rank(0));
    EXPECT_OK(await(std::move(sending)));
    EXPECT_EQ(received, sent);

    OutcomeFuture receiving = recv(ranks[0], std::nullopt, received, ranks.soon());
    EXPECT_OK(await(send(ranks[0], 0, sent, ranks.soon())));
    EXPECT_OK(await(std::move(receiving)).status);
  }
}

TEST_P(MessengerTest, SizesThatDisagreeFailBothSidesAndNothingElse) {
  Ranks ranks(2, settings());
  Buffer room(40);
  // Asked first, so that both hear it at once.
  OutcomeFuture receiving = recv(ranks[1], 0, room, ranks.soon(), {.tag = 4});
  const Buffer large = pattern(kLarge, 1);
  EXPECT_THAT(await(send(ranks[0], 1, large, ranks.soon(), {.tag = 4})),
              StatusIs(Code::kInvalid, AllOf(HasSubstr("rank 0: send of"), HasSubstr("to rank 1"),
                                             HasSubstr("receive of 40 bytes, not 65537"))));
  EXPECT_THAT(await(std::move(receiving)).status,
              StatusIs(Code::kInvalid, AllOf(HasSubstr("rank 1: recv of 40 B from rank 0 (tag 4)"),
                                             HasSubstr("has sent 65537 bytes, not 40"))));
  // Eager, and on its way: its send has ended, and only a line in the log says what became of it.
  ::testing::internal::CaptureStderr();
  receiving = recv(ranks[1], 0, room, ranks.soon(), {.tag = 4});
  const Buffer small = pattern(41, 1);
  EXPECT_OK(await(send(ranks[0], 1, small, ranks.soon(), {.tag = 4})));
  EXPECT_THAT(await(std::move(receiving)).status,
              StatusIs(Code::kInvalid, HasSubstr("has sent 41 bytes, not 40")));
  // The refusal is ahead of this on the connection.
  EXPECT_OK(await(send(ranks[1], 0, small, ranks.soon(), {.tag = 8})));
  Buffer back(41);
  EXPECT_OK(await(recv(ranks[0], 1, back, ranks.soon(), {.tag = 8})).status);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("rank 0: a message of 41 bytes to rank 1 (tag 4) met a receive of 40 bytes"));
  // Both live on, and no message is held against another.
  EXPECT_OK(await(send(ranks[0], 1, small, ranks.soon(), {.tag = 9})));
  EXPECT_OK(await(recv(ranks[1], 0, back, ranks.soon(), {.tag = 9})).status);
  EXPECT_OK(await(send(ranks[0], 1, pattern(40, 2), ranks.soon(), {.tag = 4})));
  EXPECT_OK(await(recv(ranks[1], 0, room, ranks.soon(), {.tag = 4})).status);
  EXPECT_EQ(room, pattern(40, 2));
}

TEST(Messenger, CarriesLargeMessagesBothWaysAtOnce) {
  for (const Medium& medium : {Medium::inproc(), Medium::tcp(), Medium::pipes(), Medium::resident()}) {
    Ranks ranks(2, {.medium = medium});
    constexpr std::size_t kSize = (16U << 20) + 13;
    const std::vector<Buffer> sent{pattern(kSize, 1), pattern(kSize, 2)};
    std::vector<Buffer> received(2, Buffer(kSize));
    std::vector<StatusFuture> sends;
    std::vector<OutcomeFuture> receives;
    for (const int rank : {0, 1}) {
      const auto own = static_cast<std::size_t>(rank);
      sends.push_back(send(ranks[rank], 1 - rank, ranks.place(rank, sent[own]), ranks.soon()));
      receives.push_back(recv(ranks[rank], 1 - rank, received[own], ranks.soon()));
    }
    for (auto& sending : sends) EXPECT_OK(await(std::move(sending)));
    for (auto& receiving : receives) EXPECT_OK(await(std::move(receiving)).status);
    EXPECT_TRUE(text_of(received[0]) == text_of(sent[1]));
    EXPECT_TRUE(text_of(received[1]) == text_of(sent[0]));
  }
}

// Both send everything before they receive anything, and receive in the opposite order.
TEST(Messenger, ABatchInAnyOrderOnBothSidesIsNoDeadlock) {
  Ranks ranks(2, {.medium = Medium::tcp(), .eager_budget = Bytes::kib(256)});
  constexpr std::uint64_t kMessages = 40;
  const auto size_of = [](std::uint64_t tag) {
    return tag % 4 == 0 ? std::size_t{1U << 20} : std::size_t{20'000};
  };
  std::vector<StatusFuture> sends;
  std::vector<OutcomeFuture> receives;
  std::vector<Buffer> sent;
  std::vector<Buffer> received;
  for (std::uint64_t tag = 0; tag < kMessages; ++tag) {
    sent.push_back(pattern(size_of(tag), static_cast<unsigned>(tag)));
    received.emplace_back(size_of(tag));
    received.emplace_back(size_of(tag));
  }
  for (std::uint64_t tag = 0; tag < kMessages; ++tag) {
    for (const int rank : {0, 1})
      sends.push_back(send(ranks[rank], 1 - rank, sent[tag], ranks.soon(), {.tag = tag}));
  }
  for (std::uint64_t tag = kMessages; tag-- > 0;) {
    for (const int rank : {0, 1})
      receives.push_back(recv(ranks[rank], 1 - rank, received[2 * tag + static_cast<std::size_t>(rank)],
                              ranks.soon(), {.tag = tag}));
  }
  for (auto& receiving : receives) EXPECT_OK(await(std::move(receiving)).status);
  for (auto& sending : sends) EXPECT_OK(await(std::move(sending)));
  for (std::uint64_t tag = 0; tag < kMessages; ++tag) {
    EXPECT_EQ(received[2 * tag], sent[tag]);
    EXPECT_EQ(received[2 * tag + 1], sent[tag]);
  }
}

TEST(Messenger, BeyondTheBudgetASenderWaitsAndHoldsUpNoOtherMessage) {
  Ranks ranks(2, {.eager_budget = Bytes(1000)});
  std::vector<StatusFuture> sends;
  const Buffer sent = pattern(200, 1);
  for (std::uint64_t tag = 0; tag < 10; ++tag)
    sends.push_back(send(ranks[0], 1, sent, ranks.soon(), {.tag = tag}));
  // The last of them: it has overtaken those that nobody receives.
  Buffer received(200);
  EXPECT_OK(await(recv(ranks[1], 0, received, ranks.soon(), {.tag = 9})).status);
  EXPECT_OK(await(std::move(sends[9])));
  EXPECT_TRUE(is_done(sends[2]));
  for (std::size_t waiting = 3; waiting < 9; ++waiting) EXPECT_FALSE(is_done(sends[waiting])) << waiting;
  for (std::uint64_t tag = 0; tag < 9; ++tag) {
    EXPECT_OK(await(recv(ranks[1], 0, received, ranks.soon(), {.tag = tag})).status);
    EXPECT_OK(await(std::move(sends[tag])));
    EXPECT_EQ(received, sent);
  }
  // The budget is free again.
  for (std::uint64_t tag = 0; tag < 3; ++tag)
    EXPECT_OK(await(send(ranks[0], 1, sent, ranks.soon(), {.tag = tag})));
}

TEST(Messenger, TheBudgetComesBackHoweverMessagesAreReceived) {
  for (const bool posted_first : {false, true}) {
    Ranks ranks(2, {.eager_budget = Bytes(2000)});
    for (unsigned number = 0; number < 500; ++number) {
      const Buffer sent = pattern(number % 300, number);
      Buffer received(sent.size());
      OutcomeFuture receiving;
      if (posted_first) receiving = recv(ranks[1], 0, received, ranks.soon());
      StatusFuture sending = send(ranks[0], 1, sent, ranks.soon());
      if (!posted_first) receiving = recv(ranks[1], 0, received, ranks.soon());
      ASSERT_OK(await(std::move(receiving)).status);
      ASSERT_OK(await(std::move(sending)));
      ASSERT_EQ(received, sent);
    }
  }
}

TEST(Messenger, RefusesRanksThatDoNotExist) {
  Ranks ranks(2);
  Buffer byte(1);
  EXPECT_THAT(await(send(ranks[0], 2, byte, ranks.soon())),
              StatusIs(Code::kInvalid, AllOf(HasSubstr("rank 2"), HasSubstr("world of 2"))));
  EXPECT_THAT(await(recv(ranks[0], -1, byte, ranks.soon())).status, StatusIs(Code::kInvalid));
}

// All pairs at once, both sides: whose connection wins must not matter.
TEST(Messenger, BothSidesMayConnectAtOnce) {
  for (const Medium& medium : {Medium::inproc(), Medium::tcp(), Medium::pipes(), Medium::resident()}) {
    for (int round = 0; round < 20; ++round) {
      Ranks ranks(4, {.medium = medium});
      std::vector<StatusFuture> sends;
      std::vector<OutcomeFuture> receives;
      std::vector<Buffer> sent;
      std::vector<Buffer> received(16, Buffer(8));
      for (unsigned pair = 0; pair < 16; ++pair) sent.push_back(pattern(8, pair));
      for (int pair = 0; pair < 16; ++pair) {
        const Buffer& bytes = sent[static_cast<std::size_t>(pair)];
        sends.push_back(send(ranks[pair / 4], pair % 4, bytes, ranks.soon()));
      }
      for (int pair = 0; pair < 16; ++pair) {
        Buffer& bytes = received[static_cast<std::size_t>(pair)];
        receives.push_back(recv(ranks[pair % 4], pair / 4, bytes, ranks.soon()));
      }
      for (auto& receiving : receives) ASSERT_OK(await(std::move(receiving)).status);
      for (auto& sending : sends) ASSERT_OK(await(std::move(sending)));
      ASSERT_EQ(received, sent);
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
