// How connections end: by close(), by the peer, by a deadline, by destruction.
#include <atomic>
#include <thread>
#include <utility>

#include "lockstep/testing/connection_conformance.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::testing {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string deadline_tests() { return "Deadlines"; }

// Its transports use the clock, which goes before the base class does.
ConnectionDeadlineConformance::~ConnectionDeadlineConformance() {
  client_.reset();
  server_.reset();
  listener_.reset();
  transport0_.reset();
  transport1_.reset();
}

TEST_P(ConnectionConformance, CloseFailsWhatIsPendingOnceAndForEver) {
  connect_pair();
  std::vector<Buffer> buffers(20, Buffer(10));
  const Buffer large(family_->large());
  std::vector<StatusFuture> pending;
  for (Buffer& buffer : buffers) pending.push_back(recv(*client_, buffer, soon()));
  pending.push_back(send(*client_, large, soon()));
  client_->close();
  client_->close();
  for (StatusFuture& future : pending) {
    const Status status = await(std::move(future));
    // A send may have been faster than the close.
    if (status.ok()) continue;
    EXPECT_THAT(status, StatusIs(Code::kAborted, HasSubstr("rank 1")));
    EXPECT_THAT(status, FailureIs(Failure::kClosed));
  }
  const Status later = await(recv(*client_, buffers[0], soon()));
  EXPECT_THAT(later, StatusIs(Code::kAborted));
  EXPECT_EQ(await(send(*client_, {}, soon())).text(), later.text());
}

TEST_P(ConnectionConformance, EveryCallbackRunsOnceWhileThreadsRaceWithClose) {
  for (int round = 0; round < 20; ++round) {
    connect_pair();
    constexpr std::size_t kThreads = 3;
    constexpr int kOperations = 40;
    std::atomic<int> answered = 0;
    const Buffer out(100);
    std::vector<Buffer> in(kThreads * kOperations, Buffer(50));
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kOperations; ++i) {
          client_->send(out, soon(), [&](const Status&) { ++answered; });
          client_->recv(in[t * kOperations + static_cast<std::size_t>(i)], soon(),
                        [&](const Status&) { ++answered; });
          if (t == 0 && i == round) client_->close();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    client_.reset();
    EXPECT_EQ(answered, 2 * kThreads * kOperations);
    server_.reset();
    listener_.reset();
  }
}

TEST_P(ConnectionConformance, WhatWasSentBeforeCloseArrivesAndThenTheCloseIsNamed) {
  connect_pair();
  const Buffer last_words = pattern(5000, 6);
  // The other side is sending too, and its bytes are never read.
  const Buffer unread = pattern(2000, 7);
  ASSERT_OK(await(send(*server_, unread, soon())));
  ASSERT_OK(await(send(*client_, last_words, soon())));
  client_.reset();
  Buffer got(last_words.size());
  ASSERT_OK(await(recv(*server_, got, soon())));
  EXPECT_EQ(got, last_words);
  const Status closed = await(recv(*server_, ByteSpan(got).first(1), soon()));
  EXPECT_THAT(closed, StatusIs(Code::kDisconnected,
                               AllOf(HasSubstr("recv of 1 B from rank 0"), HasSubstr("closed"))));
  EXPECT_THAT(closed, FailureIs(Failure::kClosed));
  EXPECT_EQ(closed.cause().rank, Rank(1));
  EXPECT_EQ(closed.cause().peer, Rank(0));
  EXPECT_EQ(closed.cause().op, "recv");
  // The first failure stays, also after close().
  EXPECT_EQ(await(send(*server_, got, soon())).text(), closed.text());
  server_->close();
  EXPECT_EQ(await(recv(*server_, got, soon())).text(), closed.text());
}

TEST_P(ConnectionConformance, AMessageThatIsCutShortIsAnError) {
  connect_pair();
  ASSERT_OK(await(send(*client_, pattern(10, 8), soon())));
  Buffer got(11);
  auto received = recv(*server_, got, soon());
  client_.reset();
  EXPECT_THAT(await(std::move(received)), StatusIs(Code::kDisconnected, HasSubstr("rank 0")));
}

TEST_P(ConnectionConformance, SendingToAPeerThatHasClosedFails) {
  connect_pair();
  server_.reset();
  Status status;
  const Buffer bytes = pattern(1000, 9);
  for (int i = 0; i < 100'000 && status.ok(); ++i) status = await(send(*client_, bytes, soon()));
  EXPECT_THAT(status, StatusIs(Code::kDisconnected, HasSubstr("rank 1")));
  Buffer got(1);
  EXPECT_EQ(await(recv(*client_, got, soon())).text(), status.text());
}

TEST_P(ConnectionConformance, DestructionOutsideOfTheLoopWaitsForEveryCallback) {
  connect_pair();
  std::atomic<int> answered = 0;
  const Buffer large(family_->large());
  {
    Buffer got(100);
    for (int i = 0; i < 10; ++i) client_->recv(got, soon(), [&](const Status&) { ++answered; });
    client_->send(large, soon(), [&](const Status&) { ++answered; });
    client_.reset();
    EXPECT_EQ(answered, 11);
  }
}

TEST_P(ConnectionConformance, ACallbackMayDestroyItsConnection) {
  connect_pair();
  Buffer got(1);
  Buffer never(10);
  auto second = std::make_shared<std::promise<Status>>();
  auto second_answer = second->get_future();
  auto destroyed = std::make_shared<std::promise<void>>();
  auto destroyed_answer = destroyed->get_future();
  client_->recv(got, soon(), [&, destroyed](const Status& status) {
    EXPECT_OK(status);
    client_.reset();
    destroyed->set_value();
  });
  client_->recv(never, soon(), [second](const Status& status) { second->set_value(status); });
  ASSERT_OK(await(send(*server_, pattern(1, 1), soon())));
  ASSERT_EQ(destroyed_answer.wait_for(std::chrono::minutes(5)), std::future_status::ready);
  EXPECT_THAT(await(std::move(second_answer)), StatusIs(Code::kAborted));
  EXPECT_THAT(await(recv(*server_, got, soon())), StatusIs(Code::kDisconnected));
}

TEST_P(ConnectionDeadlineConformance, ARecvThatWaitsTooLongIsATimeoutThatStays) {
  connect_pair(fake_);
  Buffer got(4096);
  auto received = recv(*client_, got, fake_.in(std::chrono::seconds(5)));
  auto patient = recv(*client_, got, fake_.in(std::chrono::hours(1)));
  ASSERT_EQ(received.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  fake_.advance(std::chrono::seconds(6));
  const Status status = await(std::move(received));
  EXPECT_THAT(status,
              StatusIs(Code::kTimeout, AllOf(HasSubstr("rank 0"), HasSubstr("rank 1"), HasSubstr("6.0 s"))));
  EXPECT_EQ(await(std::move(patient)).text(), status.text());
  EXPECT_EQ(await(send(*client_, got, soon())).text(), status.text());
}

TEST_P(ConnectionDeadlineConformance, ASendThatNobodyTakesIsATimeout) {
  connect_pair(fake_);
  if (family_->large() < (64U << 20)) {
    // What fits into the buffers on the way does not wait.
    EXPECT_OK(await(send(*client_, pattern(100, 1), fake_.in(std::chrono::seconds(5)))));
    return;
  }
  const Buffer large(family_->large());
  auto sent = send(*client_, large, fake_.in(std::chrono::seconds(5)));
  ASSERT_EQ(sent.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  fake_.advance(std::chrono::seconds(6));
  EXPECT_THAT(await(std::move(sent)), StatusIs(Code::kTimeout, HasSubstr("send of 64.0 MiB to rank 1")));
}

// Whoever gives up on a peer is not dead, and must not be taken for it.
TEST_P(ConnectionDeadlineConformance, APeerThatGaveUpHasClosed) {
  connect_pair(fake_);
  Buffer got(10);
  auto impatient = recv(*client_, got, fake_.in(std::chrono::seconds(5)));
  Buffer other(10);
  auto patient = recv(*server_, other, fake_.in(std::chrono::hours(1)));
  ASSERT_EQ(impatient.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  fake_.advance(std::chrono::seconds(6));
  EXPECT_THAT(await(std::move(impatient)), StatusIs(Code::kTimeout));
  const Status status = await(std::move(patient));
  EXPECT_THAT(status, StatusIs(Code::kDisconnected));
  EXPECT_THAT(status, FailureIs(Failure::kClosed));
}

TEST_P(ConnectionDeadlineConformance, OnlyTheEarliestDeadlineOfAllCounts) {
  connect_pair(fake_);
  Buffer got(3);
  std::vector<StatusFuture> pending;
  for (const int minutes : {3, 1, 2}) {
    pending.push_back(recv(*client_, ByteSpan(got).first(1), fake_.in(std::chrono::minutes(minutes))));
  }
  ASSERT_EQ(pending[1].wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  fake_.advance(std::chrono::seconds(59));
  ASSERT_OK(await(send(*server_, pattern(1, 1), soon())));
  ASSERT_OK(await(std::move(pending[0])));
  fake_.advance(std::chrono::seconds(2));
  EXPECT_THAT(await(std::move(pending[1])), StatusIs(Code::kTimeout));
  EXPECT_THAT(await(std::move(pending[2])), StatusIs(Code::kTimeout));
}

}  // namespace lockstep::testing
