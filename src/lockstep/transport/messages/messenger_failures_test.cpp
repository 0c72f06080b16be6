// Deadlines, groups that end, peers that go, connections that break.
#include <atomic>
#include <future>
#include <optional>
#include <thread>

#include "lockstep/testing/fake_clock.h"
#include "lockstep/testing/sanitized.h"
#include "lockstep/testing/status_matchers.h"
#include "lockstep/transport/messages/messages_test_support.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// A message there and back: what was sent or said before has arrived.
void meet(Ranks& ranks, int one, int other) {
  constexpr Label kMeeting{.group = 999, .tag = 999};
  Buffer byte(1);
  for (const auto& [from, to] : {std::pair(one, other), std::pair(other, one)}) {
    ASSERT_OK(await(send(ranks[from], to, byte, ranks.soon(), kMeeting)));
    ASSERT_OK(await(recv(ranks[to], from, byte, ranks.soon(), kMeeting)).status);
  }
}

class MessengerFailures : public ::testing::TestWithParam<Medium> {};
INSTANTIATE_TEST_SUITE_P(Over, MessengerFailures,
                         ::testing::Values(Medium::inproc(), Medium::tcp(), Medium::pipes(),
                                           Medium::resident()),
                         medium_name);

TEST_P(MessengerFailures, AReceiveWhoseDeadlinePassesIsWithdrawnAndTheRestLivesOn) {
  FakeClock clock;
  Ranks ranks(2, {.medium = GetParam(), .clock = &clock});
  meet(ranks, 0, 1);
  Buffer late(10);
  Buffer patient(10);
  OutcomeFuture expires = recv(ranks[1], 0, late, ranks.in(1s), {.tag = 7});
  OutcomeFuture any = recv(ranks[1], std::nullopt, late, ranks.in(1s), {.tag = 8});
  OutcomeFuture waits = recv(ranks[1], 0, patient, ranks.in(1h), {.tag = 7});
  clock.advance(2s);
  const Outcome outcome = await(std::move(expires));
  EXPECT_THAT(outcome.status, StatusIs(Code::kTimeout, HasSubstr("rank 1: recv of 10 B from rank 0 (tag 7): "
                                                                 "waited 2.0 s until its deadline")));
  EXPECT_EQ(outcome.status.cause().peer, Rank(0));
  EXPECT_THAT(await(std::move(any)).status, StatusIs(Code::kTimeout, HasSubstr("any rank (tag 8)")));
  // The message goes to the one that waits.
  EXPECT_OK(await(send(ranks[0], 1, pattern(10, 5), ranks.soon(), {.tag = 7})));
  EXPECT_OK(await(std::move(waits)).status);
  EXPECT_EQ(patient, pattern(10, 5));
}

// Each had cost a look at all others.
TEST(MessengerLoad, ManyOperationsThatEndTogetherEndInTime) {
  constexpr int kMany = kSanitized ? 5'000 : 30'000;
  const Duration limit = kSanitized ? 60s : 4s;
  for (const Medium& medium : {Medium::tcp(), Medium::pipes()}) {
    SCOPED_TRACE(medium.name);
    Ranks ranks(2, {.medium = medium, .eager_budget = Bytes::kib(4), .graces = {.other = 50ms}});
    meet(ranks, 0, 1);
    Buffer room(100);
    std::vector<StatusFuture> sends;
    std::vector<OutcomeFuture> receives;
    for (int i = 0; i < kMany; ++i) {
      sends.push_back(send(ranks[0], 1, room, ranks.in(300ms), {.tag = 7}));
      receives.push_back(recv(ranks[1], 0, room, ranks.in(300ms), {.tag = 8}));
    }
    Deadline end = ranks.in(300ms + limit);
    EXPECT_EQ(await(std::move(sends.back())).code(), Code::kTimeout);
    EXPECT_EQ(await(std::move(receives.back())).status.code(), Code::kTimeout);
    EXPECT_FALSE(end.expired()) << "deadlines that have passed";
    meet(ranks, 0, 1);

    receives.clear();
    for (int i = 0; i < kMany; ++i) receives.push_back(recv(ranks[1], 0, room, ranks.soon(), {.tag = 8}));
    ranks.leave(0);
    end = ranks.in(limit);
    for (OutcomeFuture& receive : receives)
      ASSERT_EQ(await(std::move(receive)).status.failure(), Failure::kClosed);
    EXPECT_FALSE(end.expired()) << "a peer that has left";
  }
}

TEST_P(MessengerFailures, ASendWhoseDeadlinePassesIsWithdrawnAndNotReceived) {
  FakeClock clock;
  Ranks ranks(2, {.medium = GetParam(), .clock = &clock});
  const Buffer large = pattern(kLarge, 1);
  const Buffer next = pattern(kLarge, 2);
  StatusFuture expires = send(ranks[0], 1, large, ranks.in(1s), {.tag = 7});
  StatusFuture to_self = send(ranks[0], 0, large, ranks.in(1s), {.tag = 7});
  meet(ranks, 0, 1);
  clock.advance(2s);
  EXPECT_THAT(await(std::move(expires)),
              StatusIs(Code::kTimeout, AllOf(HasSubstr("rank 0: send of 64.0 KiB to rank 1 (tag 7)"),
                                             HasSubstr("has not posted a receive"))));
  EXPECT_THAT(await(std::move(to_self)), StatusIs(Code::kTimeout));
  meet(ranks, 0, 1);  // the other side has heard
  Buffer received(kLarge);
  OutcomeFuture receiving = recv(ranks[1], 0, received, ranks.soon(), {.tag = 7});
  OutcomeFuture from_self = recv(ranks[0], 0, received, ranks.in(1s), {.tag = 7});
  EXPECT_OK(await(send(ranks[0], 1, next, ranks.soon(), {.tag = 7})));
  EXPECT_OK(await(std::move(receiving)).status);
  EXPECT_EQ(received, next);
  clock.advance(2s);
  EXPECT_THAT(await(std::move(from_self)).status, StatusIs(Code::kTimeout));
}

TEST_P(MessengerFailures, ARankThatLeavesBecauseOfAFailureIsNotTakenForItsCause) {
  FakeClock clock;
  Ranks ranks(2, {.medium = GetParam(), .clock = &clock, .graces = {.other = 1s}});
  meet(ranks, 0, 1);
  Buffer bytes(10);
  OutcomeFuture of_failed_group = recv(ranks[0], 1, bytes, ranks.soon(), {.group = 1});
  OutcomeFuture of_living_group = recv(ranks[0], 1, bytes, ranks.soon(), {.group = 2});
  ranks.leave(1);
  StatusFuture later = send(ranks[0], 1, bytes, ranks.soon(), {.group = 1});
  ranks[0].fail_group(1, Status::disconnected("rank 9 died"));
  EXPECT_THAT(await(std::move(of_failed_group)).status,
              StatusIs(Code::kDisconnected, HasSubstr("rank 9 died")));
  EXPECT_THAT(await(std::move(later)), StatusIs(Code::kDisconnected, HasSubstr("rank 9 died")));
  // Where nothing is heard of another failure, leaving is the reason.
  while (!is_done(of_living_group)) {
    clock.advance(2s);
    std::this_thread::yield();
  }
  EXPECT_EQ(await(std::move(of_living_group)).status.failure(), Failure::kClosed);
}

TEST_P(MessengerFailures, AMessageIntoAGroupThatHasFailedThereEndsWithWhatThisRankHears) {
  FakeClock clock;
  Ranks ranks(2, {.medium = GetParam(), .clock = &clock, .graces = {.failure = 1s}});
  const Status why = Status::disconnected("rank 9 died", {.failure = Failure::kPeerDied});
  const Buffer large = pattern(kLarge, 1);
  meet(ranks, 0, 1);
  ranks[0].fail_group(1, why);
  StatusFuture heard = send(ranks[1], 0, large, ranks.soon(), {.tag = 7});
  meet(ranks, 0, 1);
  EXPECT_FALSE(is_done(heard)) << "rank 0 says that the group has failed; the reason is on its way";
  ranks[1].fail_group(1, why);
  EXPECT_THAT(await(std::move(heard)), FailureIs(Failure::kPeerDied));
  // Where nothing is heard of it, what the other has said is all.
  ranks[0].fail_group(2, why);
  StatusFuture unheard = send(ranks[1], 0, large, ranks.soon(), {.group = 2, .tag = 7});
  meet(ranks, 0, 1);
  while (!is_done(unheard)) {
    clock.advance(2s);
    std::this_thread::yield();
  }
  EXPECT_THAT(await(std::move(unheard)), FailureIs(Failure::kRemoteError));
}

TEST_P(MessengerFailures, AGroupThatEndsFailsItsOwnAndDropsWhatStillArrives) {
  Ranks ranks(2, {.medium = GetParam(), .eager_budget = Bytes(1000)});
  const Status why = Status::aborted("the group was shut down", {.failure = Failure::kRemoteError});
  const Label other{.group = 2, .tag = 7};
  const Buffer small = pattern(600, 1);
  const Buffer large = pattern(kLarge, 1);
  Buffer in(600);
  Buffer elsewhere(600);
  EXPECT_OK(await(send(ranks[0], 1, small, ranks.soon(), {.tag = 7})));  // will be buffered there
  StatusFuture asked = send(ranks[0], 1, large, ranks.soon(), {.tag = 7});
  OutcomeFuture pending = recv(ranks[1], 0, in, ranks.soon(), {.tag = 8});
  OutcomeFuture stays = recv(ranks[1], 0, elsewhere, ranks.soon(), other);
  meet(ranks, 0, 1);
  ranks[1].fail_group(1, why);
  ranks[1].fail_group(1, Status::aborted("a second reason"));
  EXPECT_EQ(await(std::move(pending)).status.text(), why.text());
  EXPECT_EQ(await(recv(ranks[1], 0, in, ranks.soon(), {.tag = 7})).status.text(), why.text());
  EXPECT_EQ(await(send(ranks[1], 0, small, ranks.soon(), {.tag = 7})).text(), why.text());
  // The peer, which does not know yet, need not wait for its deadline.
  EXPECT_THAT(await(std::move(asked)),
              StatusIs(Code::kDisconnected, HasSubstr("the group has failed on rank 1")));
  EXPECT_THAT(await(send(ranks[0], 1, large, ranks.soon(), {.tag = 9})), StatusIs(Code::kDisconnected));
  // What was buffered is free again, late messages are dropped, and the other group has room.
  for (int late = 0; late < 20; ++late) {
    // One that has to ask, because the budget is not free yet, is refused.
    EXPECT_THAT(await(send(ranks[0], 1, Buffer(100), ranks.soon(), {.tag = 7})),
                AnyOf(IsOk(), StatusIs(Code::kDisconnected)));
  }
  EXPECT_OK(await(send(ranks[0], 1, small, ranks.soon(), other)));
  EXPECT_OK(await(std::move(stays)).status);
  EXPECT_EQ(elsewhere, small);
}

TEST_P(MessengerFailures, AGroupThatWasLeftTakesNothingMore) {
  Ranks ranks(2, {.medium = GetParam()});
  const Buffer large = pattern(kLarge, 1);
  Buffer in(600);
  OutcomeFuture pending = recv(ranks[1], 0, in, ranks.soon());
  ranks[1].leave_group(1);
  ranks[1].fail_group(1, Status::aborted("too late"));
  EXPECT_THAT(await(std::move(pending)).status, StatusIs(Code::kAborted, HasSubstr("has left the group")));
  EXPECT_THAT(await(send(ranks[0], 1, large, ranks.soon())),
              StatusIs(Code::kAborted, HasSubstr("rank 1 has left the group")));
  EXPECT_THAT(await(recv(ranks[1], 0, in, ranks.soon())).status,
              StatusIs(Code::kAborted, HasSubstr("has left the group")));
}

TEST_P(MessengerFailures, AGroupThatEndsInTheMiddleOfALargeMessageFailsBothSides) {
  Ranks ranks(2, {.medium = GetParam()});
  const Buffer large = pattern((kSanitized ? 8U : 64U) << 20, 1);
  Buffer received(large.size());
  OutcomeFuture receiving = recv(ranks[1], 0, received, ranks.soon());
  StatusFuture sending = send(ranks[0], 1, ranks.place(0, large), ranks.soon());
  meet(ranks, 0, 1);
  ranks[1].fail_group(1, Status::aborted("enough"));
  // It may have been faster.
  const Status received_status = await(std::move(receiving)).status;
  const Status sent_status = await(std::move(sending));
  if (received_status.ok()) {
    EXPECT_EQ(received, large);
  } else {
    EXPECT_THAT(received_status, StatusIs(Code::kAborted, HasSubstr("enough")));
  }
  if (!sent_status.ok()) {
    EXPECT_THAT(sent_status, FailureIs(Failure::kRemoteError));
  }
  meet(ranks, 0, 1);
}

TEST_P(MessengerFailures, APeerThatLeavesFailsItsOperationsAndIsNamed) {
  Ranks ranks(3, {.medium = GetParam()});
  const Buffer small = pattern(50, 1);
  const Buffer large = pattern(kLarge, 1);
  Buffer in(50);
  Buffer any(50);
  EXPECT_OK(await(send(ranks[1], 0, small, ranks.soon(), {.tag = 1})));
  meet(ranks, 0, 1);
  OutcomeFuture receiving = recv(ranks[0], 1, in, ranks.soon(), {.tag = 2});
  OutcomeFuture from_any = recv(ranks[0], std::nullopt, any, ranks.soon(), {.tag = 3});
  StatusFuture sending = send(ranks[0], 1, large, ranks.soon(), {.tag = 4});
  ranks.leave(1);
  const Status received = await(std::move(receiving)).status;
  EXPECT_THAT(received,
              StatusIs(Code::kDisconnected, AllOf(HasSubstr("rank 0: recv of 50 B from rank 1 (tag 2)"),
                                                  HasSubstr("rank 1 is lost"))));
  EXPECT_EQ(received.cause().peer, Rank(1));
  EXPECT_THAT(await(std::move(sending)), StatusIs(Code::kDisconnected, HasSubstr("rank 1 is lost")));
  EXPECT_THAT(await(send(ranks[0], 1, small, ranks.soon())),
              StatusIs(Code::kDisconnected, HasSubstr("rank 1")));
  EXPECT_THAT(await(recv(ranks[0], 1, in, ranks.soon(), {.tag = 9})).status, StatusIs(Code::kDisconnected));
  // What came before it left, and what others send.
  EXPECT_OK(await(recv(ranks[0], 1, in, ranks.soon(), {.tag = 1})).status);
  EXPECT_EQ(in, small);
  EXPECT_OK(await(send(ranks[2], 0, small, ranks.soon(), {.tag = 3})));
  EXPECT_EQ(await(std::move(from_any)).source, Rank(2));
  // One that was never met.
  EXPECT_THAT(await(send(ranks[2], 1, small, ranks.soon())),
              StatusIs(Code::kDisconnected, HasSubstr("rank 1")));
}

TEST_P(MessengerFailures, DestructionFailsWhatIsPending) {
  for (int round = 0; round < (kSanitized ? 4 : 10); ++round) {
    Ranks ranks(2, {.medium = GetParam()});
    if (round % 2 == 0) meet(ranks, 0, 1);
    const Buffer large = pattern(8U << 20, 1);
    Buffer received(large.size());
    Buffer in(50);
    std::vector<OutcomeFuture> receives;
    std::vector<StatusFuture> sends;
    receives.push_back(recv(ranks[0], 1, in, ranks.soon(), {.tag = 1}));
    receives.push_back(recv(ranks[0], std::nullopt, in, ranks.soon(), {.tag = 2}));
    sends.push_back(send(ranks[0], 0, large, ranks.soon(), {.tag = 3}));
    sends.push_back(send(ranks[0], 1, large, ranks.soon(), {.tag = 4}));
    // This one may be in the middle.
    OutcomeFuture moving = recv(ranks[1], 0, received, ranks.soon(), {.tag = 5});
    StatusFuture moved = send(ranks[0], 1, ranks.place(0, large), ranks.soon(), {.tag = 5});
    ranks.leave(0);
    for (auto& receiving : receives) {
      ASSERT_TRUE(is_done(receiving));
      EXPECT_THAT(await(std::move(receiving)).status, StatusIs(Code::kAborted, HasSubstr("destroyed")));
    }
    for (auto& sending : sends) {
      ASSERT_TRUE(is_done(sending));
      EXPECT_THAT(await(std::move(sending)), StatusIs(Code::kAborted));
    }
    ASSERT_TRUE(is_done(moved));
    EXPECT_THAT(await(std::move(moved)), AnyOf(IsOk(), StatusIs(Code::kAborted)));
    ranks.leave(1);
    const Status status = await(std::move(moving)).status;
    if (status.ok()) {
      EXPECT_EQ(received, large);
    }
  }
}

TEST_P(MessengerFailures, MayBeDestroyedInACallback) {
  Ranks ranks(2, {.medium = GetParam()});
  meet(ranks, 0, 1);
  Buffer in(1);
  Buffer other(1);
  OutcomeFuture pending = recv(ranks[0], 1, other, ranks.soon(), {.tag = 1});
  std::promise<void> gone;
  ranks[0].recv(1, Rank(1), 2, in, ranks.soon(), [&](const Status& status, std::optional<Rank>) {
    EXPECT_OK(status);
    ranks.leave(0);
    gone.set_value();
  });
  EXPECT_OK(await(send(ranks[1], 0, in, ranks.soon(), {.tag = 2})));
  gone.get_future().wait();
  EXPECT_THAT(await(std::move(pending)).status, StatusIs(Code::kAborted));
}

TEST_P(MessengerFailures, EveryCallbackRunsOnceWhileThreadsRaceWithTheEnd) {
  for (int round = 0; round < (kSanitized ? 4 : 10); ++round) {
    Ranks ranks(2, {.medium = GetParam(), .eager_budget = Bytes::kib(200)});
    constexpr int kThreads = 2;
    constexpr int kOperations = 50;
    std::atomic<int> answered = 0;
    const Buffer large = pattern(kLarge, 1);
    std::vector<Buffer> in(std::size_t{2} * kThreads * kOperations, Buffer(kLarge));
    std::vector<std::thread> threads;
    threads.reserve(std::size_t{2} * kThreads);
    for (int thread = 0; thread < 2 * kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        const int rank = thread % 2;
        for (int number = 0; number < kOperations; ++number) {
          const auto tag = static_cast<std::uint64_t>(number % 5);
          const int slot = thread * kOperations + number;
          ranks[rank].send(1, Rank(1 - rank), tag, large, ranks.soon(), [&](const Status&) { ++answered; });
          ranks[rank].recv(1, Rank(1 - rank), tag, in[static_cast<std::size_t>(slot)], ranks.soon(),
                           [&](const Status&, std::optional<Rank>) { ++answered; });
          if (number == 40 && rank == 0) ranks[0].fail_group(1, Status::aborted("enough"));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ranks.leave(round % 2);
    ranks.leave(1 - round % 2);
    EXPECT_EQ(answered, 4 * kThreads * kOperations);
  }
}

// Wherever the stream of rank 0 is cut, or a bit in it flips: both sides hear something typed, and what was
// received whole is what was sent.
void expect_typed(const Faults& faults) {
  FakeClock clock;
  Ranks ranks(2, {.medium = Medium::faulty("Faulty", faults),
                  .only_faulty = 0,
                  .clock = &clock,
                  .eager_budget = Bytes(400)});
  const Buffer small = pattern(100, 1);
  const Buffer large = pattern(300, 2);  // beyond the budget: it asks
  Buffer first(100);
  Buffer second(300);
  std::vector<OutcomeFuture> receives;
  receives.push_back(recv(ranks[1], 0, first, ranks.in(1min), {.tag = 1}));
  receives.push_back(recv(ranks[1], 0, second, ranks.in(1min), {.tag = 2}));
  std::vector<StatusFuture> sends;
  sends.push_back(send(ranks[0], 1, small, ranks.in(1min), {.tag = 1}));
  sends.push_back(send(ranks[0], 1, large, ranks.in(1min), {.tag = 2}));
  const bool cut = faults.cut_after.has_value();
  // Both sides notice a cut by themselves. A flipped bit may leave one waiting: for its deadline.
  for (auto& receiving : receives) {
    while (!cut && receiving.wait_for(20ms) != std::future_status::ready) clock.advance(30s);
  }
  for (auto& receiving : receives) {
    const bool is_first = &receiving == &receives[0];
    const Status status = await(std::move(receiving)).status;
    if (!status.ok()) {
      EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0"));
    } else if (cut) {
      EXPECT_EQ(is_first ? first : second, is_first ? small : large);
    }
  }
  for (auto& sending : sends) {
    const Status status = await(std::move(sending));
    EXPECT_TRUE(status.ok() || status.cause().peer == Rank(1)) << status.text();
  }
  // A group that ends afterwards finds nothing more to end.
  for (const int rank : {0, 1}) ranks[rank].fail_group(1, Status::disconnected("the group has failed"));
}

// All of it: two announcements, a payload, a piece.
constexpr std::uint64_t kStream = 48 + 100 + 48 + 48 + 300;

TEST(MessengerFaults, ACutAnywhereIsTypedAndNothingIsReceivedInPart) {
  for (std::uint64_t place = 0; place <= kStream; place += kSanitized ? 13 : 3) {
    SCOPED_TRACE(place);
    expect_typed({.cut_after = place});
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(MessengerFaults, ABitFlippedAnywhereIsNeverAHang) {
  for (std::uint64_t place = 0; place <= kStream; place += kSanitized ? 29 : 7) {
    SCOPED_TRACE(place);
    expect_typed({.seed = place, .flip_after = place});
    if (::testing::Test::HasFailure()) return;
  }
}

// Not as one that leaves.
TEST(MessengerFailures, ARankWithoutMemoryForAPipeSaysSoAndItsNeighbourHearsThatItHasFailed) {
  std::promise<Outcome> told;
  Ranks ranks(2,
              {.medium = Medium::resident(), .failed = [&](const Status& status, std::optional<Rank> peer) {
                 told.set_value({.status = status, .source = peer});
               }});
  ranks.fill_memory(0);
  Buffer in(10);
  OutcomeFuture receiving = recv(ranks[1], 0, in, ranks.soon());
  const Status sent = await(send(ranks[0], 1, Buffer(10), ranks.soon()));
  const Outcome heard = await(told.get_future());
  for (const Status& status : {sent, heard.status}) {
    EXPECT_THAT(status, FailureIs(Failure::kNoSpace)) << status.text();
    EXPECT_EQ(status.cause().peer, Rank(0)) << "whose memory it is";
  }
  EXPECT_EQ(heard.source, Rank(1)) << "who cannot be reached";
  const Status received = await(std::move(receiving)).status;
  EXPECT_THAT(received, FailureIs(Failure::kRemoteError)) << received.text();
  EXPECT_EQ(received.cause().peer, Rank(0));
}

}  // namespace
}  // namespace lockstep::testing
