// Who makes the connection between two messengers, and which one is used.
#include "lockstep/transport/messages/messenger_peer_test_support.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

TEST_F(HigherPeer, ItsConnectionIsUsedIfThereIsNoOther) {
  FarEnd end = connect();
  EXPECT_EQ(end.hear(), Frame{.kind = FrameKind::kHello});
  const Buffer small = pattern(10, 1);
  EXPECT_OK(await(send(messenger_, 1, small, ranks_.soon(), {.group = 3, .tag = 4})));
  EXPECT_EQ(end.hear(), (Frame{.kind = FrameKind::kEager, .group = 3, .tag = 4, .id = 1, .size = 10}));
  EXPECT_EQ(end.hear_bytes(10), small);
}

TEST_F(HigherPeer, ItsConnectionYieldsToTheLowerRanks) {
  const Buffer small = pattern(10, 1);
  EXPECT_OK(await(send(messenger_, 1, small, ranks_.soon())));
  FarEnd second = connect();
  EXPECT_EQ(second.hear(), Frame{.kind = FrameKind::kYield});
  Buffer more(1);
  EXPECT_THAT(await(recv(second.connection(), more, ranks_.soon())), StatusIs(Code::kDisconnected));
  FarEnd first = accept();
  EXPECT_EQ(first.hear().kind, FrameKind::kEager);
  EXPECT_EQ(first.hear_bytes(10), small);
}

// Rank 0 makes a connection to a place where nobody answers; meanwhile rank 1 makes one to rank 0.
TEST(Pairing, TheHigherRanksConnectionIsUsedIfTheLowerRanksComesToNothing) {
  FakeClock clock;
  ASSERT_OK_AND_ASSIGN(const auto loopback, base::SocketAddress::parse("127.0.0.1", 0));
  ASSERT_OK_AND_ASSIGN(const auto silent, base::listen_on(loopback));
  ASSERT_OK_AND_ASSIGN(const auto address, base::local_address(silent.get()));
  const auto make = [&](int rank) {
    const Identity identity = identity_of(rank, WorldSize(3));
    return transport::tcp::TcpTransport::create({.identity = identity, .handshake_timeout = 1h}, clock)
        .value();
  };
  const auto lower = make(0);
  const auto higher = make(1);
  const auto third = make(2);
  ASSERT_OK_AND_ASSIGN(auto listener, lower->listen({.host = "127.0.0.1", .port = 0}));
  const base::Endpoint endpoint = listener->endpoint();
  Messenger messenger(*lower, std::move(listener),
                      {.rank = Rank(0),
                       .endpoints = {endpoint, {.host = "127.0.0.1", .port = address.port()}, {}},
                       .connect_timeout = 30s});
  const Buffer small = pattern(10, 1);
  StatusFuture sending = send(messenger, 1, small, clock.in(1h));
  const transport::Target messenger_at{.endpoint = endpoint, .rank = Rank(0)};
  FarEnd end(await(connect(*higher, messenger_at, clock.in(1h))).value(), clock.in(1h));
  // One that comes later is answered when that one has been taken in.
  FarEnd later(await(connect(*third, messenger_at, clock.in(1h))).value(), clock.in(1h));
  EXPECT_EQ(later.hear(), Frame{.kind = FrameKind::kHello});
  clock.advance(31s);
  EXPECT_EQ(end.hear(), Frame{.kind = FrameKind::kHello});
  EXPECT_EQ(end.hear().kind, FrameKind::kEager);
  EXPECT_EQ(end.hear_bytes(10), small);
  EXPECT_OK(await(std::move(sending)));
}

// The messenger is the higher rank, 1; the test plays rank 0.
class LowerPeer : public ::testing::Test {
 protected:
  FarEnd accept() {
    return {await(testing::accept(ranks_.listener(0), ranks_.soon())).value(), ranks_.soon()};
  }
  FarEnd connect() {
    return {await(testing::connect(ranks_.transport(0), {.endpoint = ranks_.endpoint(1), .rank = Rank(1)},
                                   ranks_.soon()))
                .value(),
            ranks_.soon()};
  }

  Ranks ranks_{2, {.raw = 0}};
  Messenger& messenger_ = ranks_[1];
};

TEST_F(LowerPeer, SaysWhetherTheConnectionIsUsed) {
  const Buffer small = pattern(10, 1);
  StatusFuture sending = send(messenger_, 0, small, ranks_.soon());
  FarEnd end = accept();
  EXPECT_FALSE(is_done(sending));
  end.say({.kind = FrameKind::kHello});
  EXPECT_EQ(end.hear().kind, FrameKind::kEager);
  EXPECT_EQ(end.hear_bytes(10), small);
  EXPECT_OK(await(std::move(sending)));
}

TEST_F(LowerPeer, MakesTheOneThatIsUsedAfterItsYield) {
  const Buffer small = pattern(10, 1);
  StatusFuture sending = send(messenger_, 0, small, ranks_.soon());
  FarEnd yielded = accept();
  yielded.say({.kind = FrameKind::kYield});
  FarEnd end = connect();
  EXPECT_EQ(end.hear().kind, FrameKind::kEager);
  EXPECT_EQ(end.hear_bytes(10), small);
  EXPECT_OK(await(std::move(sending)));
}

TEST_F(LowerPeer, ItsConnectionIsUsedThoughTheOtherWaitsForAnAnswer) {
  const Buffer small = pattern(10, 1);
  StatusFuture sending = send(messenger_, 0, small, ranks_.soon());
  FarEnd unanswered = accept();
  FarEnd end = connect();
  EXPECT_EQ(end.hear().kind, FrameKind::kEager);
  EXPECT_EQ(end.hear_bytes(10), small);
  EXPECT_OK(await(std::move(sending)));
  Buffer more(1);
  EXPECT_THAT(await(recv(unanswered.connection(), more, ranks_.soon())), StatusIs(Code::kDisconnected));
}

TEST_F(LowerPeer, OneThatClosesWithoutAnAnswerIsLost) {
  const Buffer small = pattern(10, 1);
  StatusFuture sending = send(messenger_, 0, small, ranks_.soon());
  accept().connection().close();
  EXPECT_THAT(await(std::move(sending)), StatusIs(Code::kDisconnected, HasSubstr("rank 0 is lost")));
}

TEST_F(LowerPeer, OneThatAnswersWithAnotherFrameIsLost) {
  const Buffer small = pattern(10, 1);
  StatusFuture sending = send(messenger_, 0, small, ranks_.soon());
  FarEnd end = accept();
  end.say({.kind = FrameKind::kCredit});
  EXPECT_THAT(await(std::move(sending)), FailureIs(Failure::kCorruptFrame));
}

}  // namespace
}  // namespace lockstep::testing
