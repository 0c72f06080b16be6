// Messengers in a process that runs out of memory in the middle of their work.
#include <gmock/gmock.h>

#include "lockstep/testing/short_memory.h"
#include "lockstep/testing/status_matchers.h"
#include "lockstep/transport/messages/messages_test_support.h"
#include "lockstep/transport/messages/strand.h"

namespace lockstep::testing {
namespace {

// Rank 0 sends `size` bytes to rank 1 without its allocation number `fail_at`. True if that one was needed.
bool bear(const Medium& medium, std::size_t size, int fail_at) {
  SCOPED_TRACE(::testing::Message() << medium.name << ", " << size << " bytes, allocation " << fail_at);
  const Buffer out(size, std::byte{7});
  Buffer in(size);
  std::optional<Status> sent;
  std::atomic<int> received = 0;
  bool thrown = false;
  {
    Ranks ranks(2, {.medium = medium});
    std::atomic<bool> done = false;
    ranks[1].recv(1, Rank(0), 0, in, ranks.soon(), [&](const Status&, auto) { ++received; });
    try {
      without_one_allocation(fail_at, [&] {
        ranks[0].send(1, Rank(1), 0, out, ranks.soon(), [&](const Status& status) {
          sent = status;
          done = true;
        });
      });
    } catch (const std::bad_alloc&) {
      thrown = true;  // nothing has begun
    }
    const Deadline limit = Clock::steady().in(std::chrono::minutes(1));
    while (!thrown && !done && !limit.expired()) {
      for (int rank = 0; rank < 2; ++rank) ranks[rank].progress()->poll();
    }
    EXPECT_NE(thrown, done) << "its callback has run, if it has begun";
    if (done && !sent->ok()) {
      EXPECT_THAT(*sent, FailureIs(Failure::kNoMemory)) << sent->text();
      EXPECT_EQ(sent->cause().peer, Rank(0)) << "whose memory it is";
      // It is dead, and says so.
      Status later;
      ranks[0].send(1, Rank(1), 0, out, ranks.soon(), [&](const Status& status) { later = status; });
      EXPECT_THAT(later, FailureIs(Failure::kNoMemory)) << later.text();
    }
  }
  EXPECT_EQ(received, 1) << "by now at the latest";
  return thrown || !sent->ok();
}

TEST(MessengerMemory, AMissingAllocationEndsWhatItIsMissingForAndNothingHangs) {
  for (const Medium& medium : {Medium::pipes(), Medium::inproc()}) {
    for (const std::size_t size : {std::size_t{100}, std::size_t{100'000}}) {
      int fail_at = 0;
      while (bear(medium, size, fail_at)) ++fail_at;
      EXPECT_GT(fail_at, 3) << medium.name;
    }
  }
}

TEST(MessengerMemory, TheOwnerHearsOnceThatTheMessengerHasEnded) {
  InprocNetwork network;
  const auto transport = Medium::inproc().make(network, {.job_id = "job", .rank = Rank(0)}, Clock::steady());
  for (int fail_at = 0;; ++fail_at) {
    int heard = 0;
    Messenger messenger(*transport, nullptr, {.failed = [&](const Status& status, std::optional<Rank>) {
      EXPECT_THAT(status, FailureIs(Failure::kNoMemory));
      ++heard;
    }});
    const Buffer out(1000);
    Buffer in(1000);
    const Deadline deadline = Clock::steady().in(std::chrono::minutes(1));
    Status received = Status::internal("nothing was heard");
    messenger.recv(1, Rank(0), 0, in, deadline, [&](const Status& status, auto) { received = status; });
    try {
      without_one_allocation(fail_at,
                             [&] { messenger.send(1, Rank(0), 0, out, deadline, [](const Status&) {}); });
    } catch (const std::bad_alloc&) {
      continue;
    }
    EXPECT_EQ(heard, received.ok() ? 0 : 1);
    if (received.ok()) break;
    EXPECT_THAT(received, FailureIs(Failure::kNoMemory));
  }
}

TEST(MessengerMemory, WhatTheLoopCannotTakeTheNextTurnCalls) {
  using transport::messages::Strand;
  const auto loop = transport::Loop::start("test", Clock::steady()).value();
  for (int fail_at = 0;; ++fail_at) {
    SCOPED_TRACE(fail_at);
    std::atomic<int> called = 0;
    const auto strand = std::make_shared<Strand>([] {});
    std::function<void(const Status&, std::optional<Rank>)> done = [&](const Status&, auto) { ++called; };
    bool accepted = false;
    const bool needed = without_one_allocation(fail_at, [&] {
      strand->run_for(*loop, [&] {
        strand->call(done, Status(), std::nullopt);
        accepted = true;
      });
    });
    strand->run([] {});
    loop->run_and_drain([] {});
    EXPECT_EQ(called, accepted ? 1 : 0);
    if (!needed) break;
  }
}

}  // namespace
}  // namespace lockstep::testing
