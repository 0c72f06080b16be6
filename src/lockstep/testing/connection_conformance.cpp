#include "lockstep/testing/connection_conformance.h"

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include "lockstep/base/mutex.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::testing {

namespace {

constexpr auto kPatience = std::chrono::minutes(6);

}  // namespace

std::string connection_tests() { return "Connections"; }

ConnectionConformance::ConnectionConformance() : family_(GetParam()()) {}

ConnectionConformance::~ConnectionConformance() {
  client_.reset();
  server_.reset();
  listener_.reset();
}

void ConnectionConformance::connect_pair(const Clock& clock) {
  transport0_ = family_->make(identity_of(0), clock);
  transport1_ = family_->make(identity_of(1), clock);
  ASSERT_OK_AND_ASSIGN(listener_, transport1_->listen(family_->bind()));
  auto accepted = accept(*listener_, clock.in(std::chrono::minutes(5)));
  ASSERT_OK_AND_ASSIGN(client_,
                       await(connect(*transport0_, {.endpoint = listener_->endpoint(), .rank = Rank(1)},
                                     clock.in(std::chrono::minutes(5)))));
  ASSERT_OK_AND_ASSIGN(server_, await(std::move(accepted)));
}

TEST_P(ConnectionConformance, CarriesBytesBothWaysAndKnowsItsPeers) {
  connect_pair();
  EXPECT_EQ(client_->peer().rank, Rank(1));
  EXPECT_EQ(server_->peer().rank, Rank(0));
  EXPECT_THAT(client_->peer().text(), ::testing::HasSubstr(listener_->endpoint().text()));
  const Buffer question = pattern(1000, 1);
  const Buffer answer = pattern(777, 2);
  Buffer got_question(question.size());
  Buffer got_answer(answer.size());
  auto received = recv(*server_, got_question, soon());
  ASSERT_OK(await(send(*client_, question, soon())));
  ASSERT_OK(await(std::move(received)));
  auto answered = send(*server_, answer, soon());
  ASSERT_OK(await(recv(*client_, got_answer, soon())));
  ASSERT_OK(await(std::move(answered)));
  EXPECT_EQ(got_question, question);
  EXPECT_EQ(got_answer, answer);
}

// The stream does not keep the borders between sends: they are received in other portions.
TEST_P(ConnectionConformance, ManySmallMessagesKeepTheirOrder) {
  connect_pair();
  const int count = family_->many();
  std::vector<Buffer> sent;
  Buffer all;
  for (int i = 0; i < count; ++i) {
    sent.push_back(pattern(static_cast<std::size_t>(i % 18), static_cast<unsigned>(i)));
    all.insert(all.end(), sent.back().begin(), sent.back().end());
  }
  Buffer got(all.size());
  std::vector<StatusFuture> futures;
  futures.reserve(2 * sent.size());
  for (const Buffer& bytes : sent) futures.push_back(send(*client_, bytes, soon()));
  for (std::size_t at = 0; at < got.size();) {
    const std::size_t size = std::min<std::size_t>(1 + at % 23, got.size() - at);
    futures.push_back(recv(*server_, ByteSpan(got).subspan(at, size), soon()));
    at += size;
  }
  for (StatusFuture& future : futures) ASSERT_OK(await(std::move(future)));
  EXPECT_TRUE(got == all);
}

TEST_P(ConnectionConformance, CallbacksOfOneDirectionComeInOrderWithZeroSizesInTheirPlaces) {
  connect_pair();
  std::vector<int> order;  // touched on the loop alone until the last callback
  Buffer got(10);
  auto last = std::make_shared<std::promise<void>>();
  for (int i = 0; i < 10; ++i) {
    const ByteSpan place = i % 3 == 0 ? ByteSpan() : ByteSpan(got).subspan(static_cast<std::size_t>(i), 1);
    server_->recv(place, soon(), [&order, i, last](const Status& status) {
      EXPECT_OK(status);
      order.push_back(i);
      if (i == 9) last->set_value();
    });
  }
  for (int i = 0; i < 6; ++i) EXPECT_OK(await(send(*client_, pattern(i % 2 == 0 ? 0 : 2, 7), soon())));
  ASSERT_EQ(last->get_future().wait_for(kPatience), std::future_status::ready);
  std::vector<int> expected(10);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST_P(ConnectionConformance, LargeMessagesCrossEachOther) {
  connect_pair();
  const Buffer there = pattern(family_->large(), 3);
  const Buffer back = pattern(family_->large(), 4);
  Buffer got_there(there.size());
  Buffer got_back(back.size());
  auto sent_there = send(*client_, there, soon());
  auto sent_back = send(*server_, back, soon());
  auto received_back = recv(*client_, got_back, soon());
  auto received_there = recv(*server_, got_there, soon());
  ASSERT_OK(await(std::move(sent_there)));
  ASSERT_OK(await(std::move(sent_back)));
  ASSERT_OK(await(std::move(received_there)));
  ASSERT_OK(await(std::move(received_back)));
  EXPECT_TRUE(text_of(got_there) == text_of(there));
  EXPECT_TRUE(text_of(got_back) == text_of(back));
}

// Nothing comes back that could wake the sender: it must go on by itself.
TEST_P(ConnectionConformance, ALargeMessageCrossesAloneToASlowReceiver) {
  connect_pair();
  const Buffer bytes = pattern(family_->large(), 3);
  Buffer got(bytes.size());
  auto sent = send(*client_, bytes, soon());
  const std::size_t portion = std::max<std::size_t>(1, bytes.size() / 50);
  for (std::size_t at = 0; at < got.size(); at += portion) {
    const std::size_t size = std::min(portion, got.size() - at);
    ASSERT_OK(await(recv(*server_, ByteSpan(got).subspan(at, size), soon())));
  }
  ASSERT_OK(await(std::move(sent)));
  EXPECT_TRUE(text_of(got) == text_of(bytes));
}

TEST_P(ConnectionConformance, SendsOfManyThreadsAreNotTorn) {
  connect_pair();
  constexpr int kThreads = 4;
  constexpr int kSends = 50;
  constexpr std::size_t kSize = 40;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      const Buffer bytes(kSize, static_cast<std::byte>(t));
      for (int i = 0; i < kSends; ++i) EXPECT_OK(await(send(*client_, bytes, soon())));
    });
  }
  std::vector<int> seen(kThreads);
  for (int i = 0; i < kThreads * kSends; ++i) {
    Buffer got(kSize);
    ASSERT_OK(await(recv(*server_, got, soon())));
    EXPECT_EQ(std::ranges::count(got, got.front()), static_cast<std::ptrdiff_t>(kSize));
    ++seen.at(static_cast<std::size_t>(got.front()));
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(seen, ::testing::Each(kSends));
}

// A callback that runs inside the call that started it would deadlock here.
TEST_P(ConnectionConformance, CallbacksNeverRunInsideTheCallAndAllOnOneThread) {
  connect_pair();
  base::Mutex mutex;
  std::vector<std::thread::id> threads;
  std::promise<void> all;
  const auto callback = [&](const Status&) {
    const base::MutexLock lock(mutex);
    threads.push_back(std::this_thread::get_id());
    if (threads.size() == 5) all.set_value();
  };
  Buffer got(1);
  {
    const base::MutexLock lock(mutex);
    client_->send(pattern(0, 1), soon(), callback);
    client_->recv({}, soon(), callback);
    client_->recv(got, soon(), callback);
    client_->close();
    client_->send(pattern(0, 1), soon(), callback);
    client_->recv({}, soon(), callback);
  }
  ASSERT_EQ(all.get_future().wait_for(kPatience), std::future_status::ready);
  client_.reset();  // the last callback has let go of the mutex
  EXPECT_THAT(threads, ::testing::Each(threads.front()));
  EXPECT_NE(threads.front(), std::this_thread::get_id());
}

TEST_P(ConnectionConformance, ACallbackStartsTheNextOperation) {
  connect_pair();
  constexpr int kRounds = 300;
  Buffer ping(8);
  Buffer pong(8);
  std::promise<void> finished;
  int rounds = 0;
  std::function<void(const Status&)> serve = [&](const Status& status) {
    if (!status.ok()) return;
    // The answer may arrive, and end the test, before the last of these has been told.
    server_->send(pong, soon(), [](const Status& sent) {
      EXPECT_THAT(sent, ::testing::AnyOf(IsOk(), StatusIs(Code::kAborted)));
    });
    if (++rounds < kRounds) server_->recv(pong, soon(), serve);
  };
  int asked = 0;
  std::function<void(const Status&)> ask = [&](const Status& status) {
    EXPECT_OK(status);
    if (asked++ == kRounds) return finished.set_value();
    client_->send(ping, soon(), [](const Status& sent) { EXPECT_OK(sent); });
    client_->recv(ping, soon(), ask);
  };
  server_->recv(pong, soon(), serve);
  ask({});
  ASSERT_EQ(finished.get_future().wait_for(kPatience), std::future_status::ready);
  client_.reset();  // no callback runs any more
  server_.reset();
}

}  // namespace lockstep::testing
