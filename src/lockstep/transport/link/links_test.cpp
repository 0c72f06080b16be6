#include "lockstep/transport/link/links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <thread>

#include "lockstep/base/text.h"
#include "lockstep/testing/fake_clock.h"
#include "lockstep/testing/pattern.h"
#include "lockstep/testing/sanitized.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::transport::link {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::pattern;
using lockstep::testing::StatusIs;
using ::testing::HasSubstr;

constexpr std::size_t kLarge = std::size_t{lockstep::testing::kSanitized ? 1 : 3} << 20;

Stamp stamp_of(int number) {
  Stamp stamp{};
  stamp[0] = static_cast<std::byte>(number);
  return stamp;
}

struct Setting {
  Protection protection = Protection::kIntegrity;
  int streams = 1;
  const Clock* clock = &Clock::steady();
  std::string address = "127.0.0.1";
  std::function<bool(Rank)> has_left = [](Rank) { return false; };
  std::function<Status()> look = [] { return Status(); };
  SocketCalls* calls = &SocketCalls::kernel();
};

// Members as threads, each with a door of its own on the loopback.
template <typename Body>
void with_links(int size, const Setting& setting, Body body) {
  const Secret secret = Secret::generate();
  std::vector<std::unique_ptr<Door>> doors;
  LinksOptions common{.group = 7,
                      .protection = setting.protection,
                      .look = setting.look,
                      .has_left = setting.has_left,
                      .calls = *setting.calls,
                      .streams = setting.streams};
  for (int i = 0; i < size; ++i) {
    Identity identity{.job_id = "job", .secret = secret, .rank = Rank{i + 10}, .world = WorldSize{size}};
    auto door =
        Door::open({.identity = identity, .addresses = {*base::SocketAddress::parse(setting.address, 0)}});
    ASSERT_OK(door.status());
    common.ranks.emplace_back(i + 10);
    common.addresses.push_back((*door)->addresses());
    doors.push_back(std::move(*door));
  }
  common.describe = [](Rank peer, const Mismatch& mismatch) {
    return Status::invalid(cat("rank ", peer, " is in ", static_cast<int>(mismatch.received[0]), " with ",
                               mismatch.received_size, ", not in ", static_cast<int>(mismatch.expected[0]),
                               " with ", mismatch.expected_size),
                           {.failure = Failure::kDesync});
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(size));
  for (int i = 0; i < size; ++i) {
    threads.emplace_back([&, i] {
      LinksOptions options = common;
      options.position = i;
      options.identity = {.job_id = "job", .secret = secret, .rank = Rank{i + 10}, .world = WorldSize{size}};
      auto inbox = doors[static_cast<std::size_t>(i)]->inbox(7);
      ASSERT_OK(inbox.status());
      Links links(options, *inbox);
      body(links, i, setting.clock->in(30s));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

Status exchange(Links& links, int peer, std::size_t out_size, std::size_t in_size, const Deadline& deadline) {
  Buffer out(out_size);
  Buffer in(in_size);
  LOCKSTEP_ASSIGN(const Links::Ticket sent, links.send(peer, out, deadline));
  LOCKSTEP_ASSIGN(const Links::Ticket received, links.recv(peer, in, deadline));
  LOCKSTEP_TRY(links.wait(received, deadline));
  return links.wait(sent, deadline);
}

TEST(Links, TalkIpv6) {
  with_links(2, {.streams = 2, .address = "::1"}, [](Links& links, int own, const Deadline& deadline) {
    EXPECT_OK(links.begin(stamp_of(1)));
    for (int i = 0; i < 4; ++i) ASSERT_OK(exchange(links, 1 - own, 300'000, 300'000, deadline));
  });
}

TEST(Links, EveryMemberExchangesWithEveryOther) {
  for (const Setting& setting :
       {Setting{}, Setting{.streams = 3}, Setting{.protection = Protection::kSealed}}) {
    constexpr int kSize = 4;
    const auto seed = [](int from, int to) {
      return static_cast<std::uint64_t>(from) * kSize + static_cast<std::uint64_t>(to);
    };
    with_links(kSize, setting, [&](Links& links, int own, const Deadline& deadline) {
      for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{4097}, kLarge}) {
        EXPECT_OK(links.begin(stamp_of(static_cast<int>(size % 200))));
        std::vector<Buffer> in(kSize, Buffer(size));
        std::vector<Buffer> out;
        out.reserve(kSize);
        std::vector<Links::Ticket> tickets;
        for (int peer = 0; peer < kSize; ++peer) out.push_back(pattern(size, seed(own, peer)));
        for (int peer = 0; peer < kSize; ++peer) {
          if (peer == own) continue;
          const auto p = static_cast<std::size_t>(peer);
          auto sent = links.send(peer, out[p], deadline);  // both sides send first
          ASSERT_OK(sent.status());
          auto received = links.recv(peer, in[p], deadline);
          ASSERT_OK(received.status());
          tickets.insert(tickets.end(), {*sent, *received});
        }
        for (const Links::Ticket& ticket : tickets) ASSERT_OK(links.wait(ticket, deadline));
        for (int peer = 0; peer < kSize; ++peer) {
          if (peer == own) continue;
          EXPECT_TRUE(text_of(in[static_cast<std::size_t>(peer)]) == text_of(pattern(size, seed(peer, own))));
        }
      }
    });
  }
}

TEST(Links, CanBeMadeBeforeTheyAreUsed) {
  with_links(3, {.streams = 2}, [](Links& links, int own, const Deadline& deadline) {
    const std::vector<int> others = own == 0   ? std::vector{1, 2}
                                    : own == 1 ? std::vector{0, 2}
                                               : std::vector{0, 1};
    ASSERT_OK(links.connect(others, deadline));
    ASSERT_OK(links.connect(others, deadline));
    EXPECT_OK(links.begin(stamp_of(1)));
    for (const int other : others) ASSERT_OK(exchange(links, other, 100, 100, deadline));
  });
}

TEST(Links, WhoeverDoesNotConnectIsNamed) {
  lockstep::testing::FakeClock clock;
  with_links(3, {.clock = &clock}, [&clock](Links& links, int own, const Deadline& deadline) {
    if (own < 2) return;
    clock.advance(1min);
    const std::vector<int> others = {0, 1};
    const Status status = links.connect(others, deadline);
    EXPECT_THAT(status, StatusIs(Code::kTimeout, HasSubstr("did not connect")));
    EXPECT_THAT(status.cause().missing, ::testing::ElementsAre(Rank{10}, Rank{11}));
  });
}

TEST(Links, ManyMessagesKeepTheirOrder) {
  with_links(2, {.streams = 2}, [](Links& links, int own, const Deadline& deadline) {
    EXPECT_OK(links.begin(stamp_of(1)));
    std::vector<std::uint32_t> numbers(1000);
    std::vector<Links::Ticket> tickets;
    for (std::uint32_t i = 0; i < numbers.size(); ++i) {
      const ByteSpan bytes = std::as_writable_bytes(std::span(&numbers[i], 1));
      if (own == 0) numbers[i] = i;
      auto ticket = own == 0 ? links.send(1, bytes, deadline) : links.recv(0, bytes, deadline);
      ASSERT_OK(ticket.status());
      tickets.push_back(*ticket);
    }
    for (const Links::Ticket& ticket : tickets) ASSERT_OK(links.wait(ticket, deadline));
    for (std::uint32_t i = 0; i < numbers.size(); ++i) ASSERT_EQ(numbers[i], i);
  });
}

// Member 2 comes late, 1 waits for its message, and 0 for one of 1, which sends late for that reason alone.
TEST(Links, WhoHasComeLateIsKnownAndNotWhoHasWaited) {
  constexpr Duration kLate = 40ms;
  std::barrier all(3);
  std::atomic<int> told = 0;
  with_links(3, {}, [&](Links& links, int own, const Deadline& deadline) {
    const auto step = [&](Result<Links::Ticket> ticket) {
      ASSERT_OK(ticket.status());
      ASSERT_OK(links.wait(*ticket, deadline));
    };
    // Where the machine gives a receiver no time, the message is there when it looks: then once more.
    for (int turn = 1; told < 2 && turn <= 50; ++turn) {
      all.arrive_and_wait();
      if (own == 0) told = 0;
      if (own == 2) std::this_thread::sleep_for(kLate);
      EXPECT_OK(links.begin(stamp_of(turn)));
      EXPECT_FALSE(links.latest());
      Buffer byte(1);
      if (own < 2) step(links.recv(own + 1, byte, deadline));
      if (own > 0) step(links.send(own - 1, byte, deadline));
      const auto latest = links.latest();
      all.arrive_and_wait();
      if (own == 1 && latest && latest->peer == 2 && latest->by > kLate / 2) ++told;
      if (own == 0 && latest && latest->peer == 1 && latest->by < kLate / 4) ++told;
      all.arrive_and_wait();
    }
  });
  EXPECT_EQ(told, 2);
}

TEST(Links, MembersInDifferentOperationsAreTold) {
  with_links(2, {}, [](Links& links, int own, const Deadline& deadline) {
    EXPECT_OK(links.begin(stamp_of(own + 1)));
    const Status status = exchange(links, 1 - own, 8, 8, deadline);
    EXPECT_THAT(status, StatusIs(Code::kInvalid, HasSubstr("not in")));
    links.abort(status);  // the other may have lost its chance to see it for itself
  });
}

TEST(Links, AMessageOfAnotherSizeIsToldAlsoBeyondItsFirstFrame) {
  for (const auto& [out, in] : {std::pair{std::size_t{8}, std::size_t{16}},
                                {kMaxPayload + 8, kMaxPayload},
                                {kMaxPayload, kMaxPayload + 8},
                                {std::size_t{8}, std::size_t{0}}}) {
    with_links(2, {}, [out, in](Links& links, int own, const Deadline& deadline) {
      EXPECT_OK(links.begin(stamp_of(1)));
      if (own == 0) {
        (void)exchange(links, 1, out, 1, deadline);
        return links.abort(Status::aborted("enough"));
      }
      EXPECT_THAT(exchange(links, 0, 1, in, deadline),
                  StatusIs(Code::kInvalid, HasSubstr("rank 10 is in 1 with")));
    });
  }
}

TEST(Links, WhoeverEndsTheGroupSaysWhy) {
  for (const Protection protection : {Protection::kIntegrity, Protection::kSealed}) {
    with_links(2, {.protection = protection}, [](Links& links, int own, const Deadline& deadline) {
      EXPECT_OK(links.begin(stamp_of(1)));
      EXPECT_OK(exchange(links, 1 - own, 100, 100, deadline));
      EXPECT_OK(links.begin(stamp_of(2)));
      if (own == 0) {
        links.abort(Status::disconnected("rank 42 died", {.failure = Failure::kPeerDied, .peer = Rank{42}}));
        EXPECT_THAT(exchange(links, 1, 8, 8, deadline), StatusIs(Code::kAborted));
        return;
      }
      // However much the other expects, it hears it.
      const Status status = exchange(links, 0, 8, 20, deadline);
      EXPECT_EQ(status.message(), "rank 42 died");
      EXPECT_EQ(status.cause().peer, Rank{42});
    });
  }
}

TEST(Links, AMemberThatIsGoneIsNamed) {
  with_links(2, {}, [](Links& links, int own, const Deadline& deadline) {
    EXPECT_OK(links.begin(stamp_of(1)));
    EXPECT_OK(exchange(links, 1 - own, 100, 100, deadline));
    if (own == 0) return;  // its links are closed without a word, as if it had died
    EXPECT_OK(links.begin(stamp_of(2)));
    const Status status = exchange(links, 0, 8, 8, deadline);
    EXPECT_THAT(status, StatusIs(Code::kDisconnected, HasSubstr("rank 10")));
    EXPECT_EQ(status.failure(), Failure::kPeerDied);
    EXPECT_EQ(status.cause().peer, Rank{10});
  });
}

TEST(Links, AMemberThatNeverComesIsATimeoutThatNamesIt) {
  lockstep::testing::FakeClock clock;
  with_links(2, {.clock = &clock}, [&clock](Links& links, int own, const Deadline& deadline) {
    if (own == 0) return;
    EXPECT_OK(links.begin(stamp_of(1)));
    clock.advance(1min);
    EXPECT_THAT(exchange(links, 0, 8, 8, deadline), StatusIs(Code::kTimeout, HasSubstr("rank 10")));
  });
}

TEST(Links, WhatAMemberHasSentIsReceivedThoughItIsHeardFirstThatItHasLeft) {
  lockstep::testing::FakeClock clock;
  std::atomic<int> looks = 0;
  std::atomic<bool> given_up = false;
  const auto has_left = [&looks](Rank) { return ++looks > 0; };
  with_links(2, {.clock = &clock, .has_left = has_left},
             [&](Links& links, int own, const Deadline& deadline) {
               const Buffer out = pattern(100, 1);
               Buffer in(out.size());
               EXPECT_OK(links.begin(stamp_of(1)));
               if (own == 0) {
                 while (looks < 3 && !given_up) std::this_thread::yield();
                 const auto sent = links.send(1, out, deadline);
                 ASSERT_OK(sent.status());
                 ASSERT_OK(links.wait(*sent, deadline));
                 return links.leave();
               }
               const auto received = links.recv(0, in, deadline);
               ASSERT_OK(received.status());
               EXPECT_OK(links.wait(*received, deadline));
               given_up = true;
               EXPECT_EQ(in, out);
             });
}

TEST(Links, AMemberThatHasLeftWithoutALinkIsNamedOnceNoneCanBeOnItsWay) {
  lockstep::testing::FakeClock clock;
  const auto has_left = [&clock](Rank) {
    clock.advance(50ms);
    return true;
  };
  with_links(2, {.clock = &clock, .has_left = has_left}, [](Links& links, int own, const Deadline& deadline) {
    if (own == 0) return;
    Buffer in(1);
    EXPECT_OK(links.begin(stamp_of(1)));
    const auto received = links.recv(0, in, deadline);
    ASSERT_OK(received.status());
    EXPECT_THAT(links.wait(*received, deadline),
                StatusIs(Code::kDisconnected, HasSubstr("rank 10 left the group")));
  });
}

// Makes the second connection when its deadline has passed.
class SecondIsLate : public SocketCalls {
 public:
  explicit SecondIsLate(lockstep::testing::FakeClock& clock) : clock_(clock) {}
  ssize_t send(int socket, const msghdr& message) override { return kernel().send(socket, message); }
  ssize_t recv(int socket, msghdr& message) override { return kernel().recv(socket, message); }
  void connecting(Rank) override {
    if (++connections_ == 2) clock_.advance(2s);
  }
  int connections() const { return connections_; }

 private:
  lockstep::testing::FakeClock& clock_;
  std::atomic<int> connections_ = 0;
};

TEST(Links, WhoCouldMakeOnlySomeStreamsKeepsThemAndMakesTheOthersLater) {
  lockstep::testing::FakeClock clock;
  SecondIsLate calls(clock);
  with_links(2, {.streams = 2, .clock = &clock, .calls = &calls},
             [&calls](Links& links, int own, const Deadline& deadline) {
               EXPECT_OK(links.begin(stamp_of(1)));
               if (own == 0) {
                 EXPECT_FALSE(links.tell_of_operation(1, deadline.at_most(1s)));
                 EXPECT_EQ(calls.connections(), 2);
                 EXPECT_TRUE(links.tell_of_operation(1, deadline));
                 ASSERT_EQ(calls.connections(), 3);
               }
               for (int i = 0; i < 2; ++i) EXPECT_OK(exchange(links, 1 - own, 100, 100, deadline));
               links.leave();
             });
}

// A message of which a byte comes with every call, and never none: it would take a minute.
class NeverQuiet : public SocketCalls {
 public:
  ssize_t send(int socket, const msghdr& message) override { return kernel().send(socket, message); }
  ssize_t recv(int socket, msghdr& message) override {
    iovec one{.iov_base = message.msg_iov[0].iov_base, .iov_len = 1};
    msghdr little{};
    little.msg_iov = &one;
    little.msg_iovlen = 1;
    return kernel().recv(socket, little);
  }
  void connecting(Rank) override {}
};

TEST(Links, WhileBytesComeTheDeadlineIsKeptAndWhatElseEndsTheWaitIsHeard) {
  NeverQuiet calls;
  std::atomic<bool> failed = false;
  const auto look = [&]() -> Status {
    if (failed) return Status::aborted("the group has failed");
    return {};
  };
  constexpr std::size_t kEndless = std::size_t{256} << 20;
  with_links(2, {.look = look, .calls = &calls}, [&](Links& links, int own, const Deadline& deadline) {
    EXPECT_OK(links.begin(stamp_of(1)));
    Buffer bytes(kEndless);
    if (own == 0) {
      const auto sent = links.send(1, bytes, deadline);
      ASSERT_OK(sent.status());
      EXPECT_FALSE(links.wait(*sent, deadline).ok());
      return;
    }
    const auto received = links.recv(0, bytes, deadline);
    ASSERT_OK(received.status());
    EXPECT_EQ(links.wait(*received, deadline.at_most(200ms)).code(), Code::kTimeout);
    failed = true;
    EXPECT_EQ(links.wait(*received, deadline).code(), Code::kAborted);
  });
}

}  // namespace
}  // namespace lockstep::transport::link
