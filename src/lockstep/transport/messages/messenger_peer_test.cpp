// A messenger and a peer that the test plays: what is answered, what is refused.
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "lockstep/transport/messages/messenger_peer_test_support.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(HigherPeer, ALargeMessageAsksAndComesInPiecesWhenItMayGo) {
  const Buffer large = pattern(300'000, 1);
  StatusFuture sending = send(messenger_, 1, large, ranks_.soon(), {.tag = 4});
  FarEnd end = accept();
  EXPECT_EQ(end.hear(), (Frame{.kind = FrameKind::kAsk, .group = 1, .tag = 4, .id = 1, .size = 300'000}));
  EXPECT_FALSE(is_done(sending));
  end.say({.kind = FrameKind::kGo, .id = 1});
  Buffer received;
  while (received.size() < large.size()) {
    const Frame piece = end.hear();
    ASSERT_EQ(piece.kind, FrameKind::kData);
    const Buffer bytes = end.hear_bytes(static_cast<std::size_t>(piece.size));
    received.insert(received.end(), bytes.begin(), bytes.end());
  }
  EXPECT_EQ(received, large);
  EXPECT_OK(await(std::move(sending)));
}

TEST_F(HigherPeer, AMessageIsAbandonedAtItsDeadlineAlsoInTheMiddle) {
  // More than the connection takes before it is read.
  const Buffer large = pattern(4U << 20, 1);
  StatusFuture sending = send(messenger_, 1, large, ranks_.in(1min), {.tag = 4});
  FarEnd end = accept();
  EXPECT_EQ(end.hear().kind, FrameKind::kAsk);
  end.say({.kind = FrameKind::kGo, .id = 1});
  Frame frame = end.hear();
  // Its deadline is the later one: when it has been noticed, so has the message's.
  Buffer never(1);
  OutcomeFuture later = recv(messenger_, 1, never, ranks_.in(90s), {.tag = 5});
  clock_.advance(2min);
  EXPECT_THAT(await(std::move(later)).status, StatusIs(Code::kTimeout));
  // The piece that was being sent comes whole.
  while (frame.kind == FrameKind::kData) {
    end.hear_bytes(static_cast<std::size_t>(frame.size));
    frame = end.hear();
  }
  EXPECT_EQ(
      frame,
      (Frame{.kind = FrameKind::kAbandon, .refusal = Refusal::kWithdrawn, .group = 1, .tag = 4, .id = 1}));
  EXPECT_THAT(await(std::move(sending)), StatusIs(Code::kTimeout, HasSubstr("rank 1")));
}

TEST_F(HigherPeer, WhatEndsTheGroupInTheMiddleOfAPieceIsWhyThoughItWasRefusedBefore) {
  const Buffer large = pattern(4U << 20, 1);
  StatusFuture sending = send(messenger_, 1, large, ranks_.soon(), {.tag = 4});
  FarEnd end = accept();
  EXPECT_EQ(end.hear().kind, FrameKind::kAsk);
  end.say({.kind = FrameKind::kGo, .id = 1});
  settle(ranks_.transport(0));  // the connection takes no more
  end.say({.kind = FrameKind::kRefuse, .refusal = Refusal::kFailed, .group = 1, .tag = 4, .id = 1});
  settle(ranks_.transport(0));
  EXPECT_FALSE(is_done(sending));
  messenger_.fail_group(
      1, Status::disconnected("rank 9 died", {.failure = Failure::kPeerDied, .peer = Rank(9)}));
  for (Frame frame = end.hear(); frame.kind == FrameKind::kData; frame = end.hear())
    end.hear_bytes(static_cast<std::size_t>(frame.size));
  EXPECT_THAT(await(std::move(sending)), FailureIs(Failure::kPeerDied));
}

TEST_F(HigherPeer, AReceiveIsWithdrawnAtItsDeadlineAlsoInTheMiddle) {
  FarEnd end = connect();
  end.hear();
  Buffer in(kLarge);
  OutcomeFuture receiving = recv(messenger_, 1, in, ranks_.in(1min), {.tag = 4});
  end.say({.kind = FrameKind::kAsk, .group = 1, .tag = 4, .id = 1, .size = kLarge});
  EXPECT_EQ(end.hear(), (Frame{.kind = FrameKind::kGo, .group = 1, .tag = 4, .id = 1}));
  end.say({.kind = FrameKind::kData, .id = 1, .size = 100}, Buffer(100));
  clock_.advance(2min);
  EXPECT_THAT(await(std::move(receiving)).status, StatusIs(Code::kTimeout, HasSubstr("from rank 1 (tag 4)")));
  EXPECT_EQ(end.hear().refusal, Refusal::kWithdrawn);
  // What was on its way is thrown away; then the next message comes.
  end.say({.kind = FrameKind::kData, .id = 1, .size = 50}, Buffer(50));
  end.say({.kind = FrameKind::kAbandon, .refusal = Refusal::kWithdrawn, .group = 1, .tag = 4, .id = 1});
  end.say({.kind = FrameKind::kEager, .group = 1, .tag = 4, .id = 2, .size = 5}, pattern(5, 9));
  Buffer next(5);
  EXPECT_OK(await(recv(messenger_, 1, next, ranks_.soon(), {.tag = 4})).status);
  EXPECT_EQ(next, pattern(5, 9));
}

TEST_F(HigherPeer, OneThatStopsInTheMiddleOfAPieceIsLost) {
  FarEnd end = connect();
  end.hear();
  Buffer in(1000);
  OutcomeFuture receiving = recv(messenger_, 1, in, ranks_.in(1min), {.tag = 4});
  end.say({.kind = FrameKind::kEager, .group = 1, .tag = 4, .id = 1, .size = 1000}, Buffer(10));
  end.say({}, {});  // not read: it is part of the payload
  settle(ranks_.transport(0));
  EXPECT_FALSE(is_done(receiving));
  clock_.advance(2min);
  // First the deadline is noticed, then the wait for the rest.
  while (!is_done(receiving)) clock_.advance(100ms);
  const Status status = await(std::move(receiving)).status;
  EXPECT_THAT(status, StatusIs(Code::kTimeout, HasSubstr("rank 1")));
  EXPECT_THAT(await(send(messenger_, 1, in, ranks_.soon())),
              AllOf(StatusIs(Code::kTimeout, HasSubstr("rank 1 is lost")), FailureIs(Failure::kPeerStalled)));
}

TEST_F(HigherPeer, AMessageThatItsSenderWithdrawsFailsTheReceive) {
  FarEnd end = connect();
  end.hear();
  Buffer in(kLarge);
  OutcomeFuture receiving = recv(messenger_, std::nullopt, in, ranks_.soon(), {.tag = 4});
  end.say({.kind = FrameKind::kAsk, .group = 1, .tag = 4, .id = 1, .size = kLarge});
  end.hear();
  end.say({.kind = FrameKind::kData, .id = 1, .size = 100}, Buffer(100));
  end.say({.kind = FrameKind::kAbandon, .refusal = Refusal::kWithdrawn, .group = 1, .tag = 4, .id = 1});
  const Outcome outcome = await(std::move(receiving));
  EXPECT_THAT(outcome.status, StatusIs(Code::kTimeout, HasSubstr("rank 1 withdrew the message")));
  EXPECT_EQ(outcome.source, Rank(1));
}

TEST_F(HigherPeer, NobodyWaitsForTheRestOfAPieceFromOneThatIsLost) {
  FarEnd end = connect();
  end.hear();
  Buffer in(1000);
  OutcomeFuture receiving = recv(messenger_, 1, in, ranks_.soon(), {.tag = 4});
  end.say({.kind = FrameKind::kEager, .group = 1, .tag = 4, .id = 1, .size = 1000}, Buffer(10));
  EXPECT_FALSE(is_done(receiving));
  messenger_.fail_group(
      1, Status::disconnected("rank 1 died", {.failure = Failure::kPeerDied, .peer = Rank(1)}));
  EXPECT_THAT(await(std::move(receiving)).status, FailureIs(Failure::kPeerDied));
}

TEST_F(HigherPeer, WhyAMessageIsWithdrawnIsHeard) {
  FarEnd end = connect();
  end.hear();
  Buffer in(kLarge);
  std::uint64_t id = 0;
  for (const auto& [refusal, failure] :
       {std::pair(Refusal::kGroup, Failure::kClosed), std::pair(Refusal::kFailed, Failure::kRemoteError)}) {
    OutcomeFuture receiving = recv(messenger_, 1, in, ranks_.soon(), {.tag = 4});
    end.say({.kind = FrameKind::kAsk, .group = 1, .tag = 4, .id = ++id, .size = kLarge});
    end.hear();
    end.say({.kind = FrameKind::kAbandon, .refusal = refusal, .group = 1, .tag = 4, .id = id});
    EXPECT_THAT(await(std::move(receiving)).status, FailureIs(failure));
  }
}

TEST_F(HigherPeer, CreditIsReturnedWithTheNextFrame) {
  FarEnd end = connect();
  end.hear();
  end.say({.kind = FrameKind::kEager, .group = 1, .tag = 4, .id = 1, .size = 5}, Buffer(5));
  Buffer in(5);
  EXPECT_OK(await(recv(messenger_, 1, in, ranks_.soon(), {.tag = 4})).status);
  EXPECT_OK(await(send(messenger_, 1, in, ranks_.soon())));
  EXPECT_EQ(end.hear().credit, transport::messages::eager_cost(5));
}

TEST_F(HigherPeer, InAForkedChildEverythingIsRefused) {
  const pid_t child = fork();
  if (child == 0) {
    Failure sent = Failure::kNone;
    Failure received = Failure::kNone;
    Buffer byte(1);
    messenger_.send(1, Rank(1), 0, byte, ranks_.soon(),
                    [&](const Status& status) { sent = status.failure(); });
    messenger_.recv(1, Rank(1), 0, byte, ranks_.soon(),
                    [&](const Status& status, std::optional<Rank>) { received = status.failure(); });
    messenger_.fail_group(1, Status::aborted("in the child"));
    ranks_.leave(0);
    _exit(sent == Failure::kForked && received == Failure::kForked ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  Buffer byte(1);
  EXPECT_OK(await(send(messenger_, 1, byte, ranks_.soon())));
}

struct Offence {
  std::string name;
  std::function<void(FarEnd&)> commit;
  Failure failure;
};

class Offences : public ::testing::TestWithParam<Offence> {};

TEST_P(Offences, EndTheConnectionAndHurtNobodyElse) {
  Ranks ranks(3, {.raw = 1, .eager_budget = Bytes(1000)});
  FarEnd end(
      await(connect(ranks.transport(1), {.endpoint = ranks.endpoint(0), .rank = Rank(0)}, ranks.soon()))
          .value(),
      ranks.soon());
  end.hear();
  Buffer in(kLarge);
  Buffer any(10);
  OutcomeFuture receiving = recv(ranks[0], 1, in, ranks.soon(), {.tag = 4});
  OutcomeFuture from_any = recv(ranks[0], std::nullopt, any, ranks.soon(), {.tag = 5});
  StatusFuture sending = send(ranks[0], 1, in, ranks.soon(), {.tag = 6});
  end.hear();  // it asks
  GetParam().commit(end);
  for (const Status& status : {await(std::move(receiving)).status, await(std::move(sending)),
                               await(send(ranks[0], 1, any, ranks.soon()))}) {
    EXPECT_THAT(status, StatusIs(Code::kDisconnected, HasSubstr("rank 1 is lost")));
    EXPECT_THAT(status, FailureIs(GetParam().failure));
  }
  EXPECT_OK(await(send(ranks[2], 0, any, ranks.soon(), {.tag = 5})));
  EXPECT_OK(await(std::move(from_any)).status);
}

INSTANTIATE_TEST_SUITE_P(
    Of, Offences,
    ::testing::Values(
        Offence{"Garbage", [](FarEnd& end) { end.say({.kind = static_cast<FrameKind>(0xee)}); },
                Failure::kCorruptFrame},
        Offence{"HugeEager",
                [](FarEnd& end) { end.say({.kind = FrameKind::kEager, .id = 1, .size = 1ULL << 62}); },
                Failure::kLimitExceeded},
        Offence{"HugeAsk", [](FarEnd& end) { end.say({.kind = FrameKind::kAsk, .id = 1, .size = ~0ULL}); },
                Failure::kLimitExceeded},
        Offence{"OverBudget",
                [](FarEnd& end) { end.say({.kind = FrameKind::kEager, .id = 1, .size = 1001}); },
                Failure::kLimitExceeded},
        Offence{"OverBudgetInSum",
                [](FarEnd& end) {
                  for (std::uint64_t id = 1; id <= 2; ++id)
                    end.say({.kind = FrameKind::kEager, .id = id, .size = 500}, Buffer(500));
                },
                Failure::kLimitExceeded},
        Offence{"DataUnasked", [](FarEnd& end) { end.say({.kind = FrameKind::kData, .id = 1, .size = 1}); },
                Failure::kCorruptFrame},
        Offence{"DataBeyondItsMessage",
                [](FarEnd& end) {
                  end.say({.kind = FrameKind::kAsk, .group = 1, .tag = 4, .id = 1, .size = kLarge});
                  end.hear();
                  end.say({.kind = FrameKind::kData, .id = 1, .size = kLarge + 1});
                },
                Failure::kCorruptFrame},
        Offence{"GoForNothing", [](FarEnd& end) { end.say({.kind = FrameKind::kGo, .id = 99}); },
                Failure::kCorruptFrame},
        Offence{
            "RefusalOfNothing",
            [](FarEnd& end) { end.say({.kind = FrameKind::kRefuse, .refusal = Refusal::kGroup, .id = 99}); },
            Failure::kCorruptFrame},
        Offence{"MessageOutOfTurn", [](FarEnd& end) { end.say({.kind = FrameKind::kAsk, .id = 2}); },
                Failure::kCorruptFrame},
        Offence{"CreditThatWasNotGiven", [](FarEnd& end) { end.say({.credit = 1}); }, Failure::kCorruptFrame},
        Offence{"HelloTwice", [](FarEnd& end) { end.say({.kind = FrameKind::kHello}); },
                Failure::kCorruptFrame},
        Offence{"Close", [](FarEnd& end) { end.connection().close(); }, Failure::kClosed}),
    [](const auto& offence) { return offence.param.name; });

}  // namespace
}  // namespace lockstep::testing
