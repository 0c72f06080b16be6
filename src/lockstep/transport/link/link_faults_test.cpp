// What a link makes of a stream that is cut off or damaged. The long form is chosen by LOCKSTEP_TEST_LONG=1.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <random>

#include "lockstep/base/environment.h"
#include "lockstep/base/net.h"
#include "lockstep/base/status_bytes.h"
#include "lockstep/testing/pattern.h"
#include "lockstep/testing/status_matchers.h"
#include "lockstep/transport/link/faulty_calls.h"
#include "lockstep/transport/link/link.h"

namespace lockstep::transport::link {
namespace {

using namespace std::chrono_literals;
using How = LinkFaults::How;
using lockstep::testing::FailureIs;
using lockstep::testing::pattern;

constexpr Stamp kStamp{std::byte{7}};

bool long_form() {
  const auto environment = Environment::read();
  return environment.ok() && environment->all.contains("LOCKSTEP_TEST_LONG");
}

// A stream from one link to another.
struct Ends {
  UniqueFd from;
  UniqueFd to;
};

Ends connect_ends() {
  static const UniqueFd listener = base::listen_on(*base::SocketAddress::parse("127.0.0.1", 0)).value();
  Ends ends;
  ends.from =
      base::connect_to(*base::local_address(listener.get()), Clock::steady().in(60s), base::OnRefused::kFail)
          .value();
  pollfd ready{.fd = listener.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&ready, 1, 60'000), 1);
  ends.to = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  return ends;
}

Ends make_pair() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
  return {.from = UniqueFd(fds[0]), .to = UniqueFd(fds[1])};
}

enum class Guard : bool { kChecksum, kSeal };
constexpr Guard kGuards[] = {Guard::kChecksum, Guard::kSeal};

std::optional<LinkKeys> keys_of(Guard guard) {
  if (guard == Guard::kChecksum) return std::nullopt;
  LinkKeys keys{};
  keys.send.fill(std::byte{3});
  keys.recv = keys.send;
  return keys;
}

std::size_t frame_size(std::size_t payload, Guard guard) {
  return kHeaderSize + payload + (guard == Guard::kSeal ? base::kSealTagSize : 0);
}

// Moves both until the receiver has failed, or everything has come.
Status move(Link& sender, Link& receiver) {
  const Deadline limit = Clock::steady().in(60s);
  bool broken = false;  // the sender has noticed
  while (receiver.pending() && !limit.expired()) {
    if (!broken) broken = !sender.progress().ok();
    auto moved = receiver.progress();
    if (!moved.ok()) return moved.status();
    if (*moved || (!broken && sender.pending())) continue;
    pollfd ready{.fd = receiver.fd(), .events = POLLIN, .revents = 0};
    (void)::poll(&ready, 1, limit.poll_millis());
  }
  return receiver.pending() ? Status::timeout("the receiver waits for what does not come") : Status();
}

TEST(LinkFaults, AStreamThatIsCutAnywhereIsATypedErrorAndNeverAPartOfAMessage) {
  constexpr std::size_t kFirst = 700;
  constexpr std::size_t kSecond = 4000;
  const Buffer first = pattern(kFirst, 1);
  const Buffer second = pattern(kSecond, 2);
  for (const Guard guard : kGuards) {
    for (const How how : {How::kEnd, How::kReset}) {
      for (std::uint64_t after = 0; after <= 4096; ++after) {
        Ends ends = how == How::kEnd ? make_pair() : connect_ends();
        FaultyCalls faults({.cut = LinkFaults::Cut{.after = after, .how = how}});
        Link sender(std::move(ends.from), keys_of(guard), faults);
        Link receiver(std::move(ends.to), keys_of(guard));
        Buffer in_first(kFirst);
        Buffer in_second(kSecond);
        sender.send(kStamp, 0, first);
        sender.send(kStamp, 1, second);
        receiver.recv(kStamp, 0, in_first);
        receiver.recv(kStamp, 1, in_second);
        const Status status = move(sender, receiver);
        ASSERT_EQ(status.code(), Code::kDisconnected) << after << ": " << status.text();
        ASSERT_EQ(status.failure(), Failure::kPeerDied) << after << ": " << status.text();
        const std::uint64_t whole = after >= frame_size(kFirst, guard) ? 1 : 0;
        ASSERT_LE(receiver.recvs_done(), whole) << after;
        if (how == How::kEnd) {
          ASSERT_EQ(receiver.recvs_done(), whole) << after;  // what came before the end counts
        }
        if (receiver.recvs_done() == 1) {
          ASSERT_EQ(in_first, first) << after;
        }
      }
    }
  }
}

TEST(LinkFaults, OneBitThatArrivesWrongIsAlwaysNoticed) {
  const int frames = long_form() ? 100'000 : 5'000;
  std::mt19937_64 random(42);
  for (const Guard guard : kGuards) {
    for (int i = 0; i < frames; ++i) {
      const std::size_t size = random() % (i % 16 == 0 ? 60'000 : 900);
      const std::uint64_t bit = random() % (frame_size(size, guard) * 8);
      const Buffer out = pattern(size, static_cast<std::uint64_t>(i));
      Ends ends = make_pair();
      FaultyCalls faults({.flip = bit});
      Link sender(std::move(ends.from), keys_of(guard), faults);
      Link receiver(std::move(ends.to), keys_of(guard));
      Buffer in(size);
      sender.send(kStamp, 0, out);
      receiver.recv(kStamp, 0, in);
      const Status status = move(sender, receiver);
      ASSERT_EQ(status.failure(), Failure::kCorruptFrame) << "bit " << bit << " of " << size << " bytes";
      ASSERT_EQ(status.code(), Code::kDisconnected);
      ASSERT_EQ(receiver.recvs_done(), 0U);
    }
  }
}

TEST(LinkFaults, ByteByByteEverythingArrives) {
  for (const Guard guard : kGuards) {
    Ends ends = make_pair();
    FaultyCalls slow_out({.most = 1});
    FaultyCalls slow_in({.most = 1});
    Link sender(std::move(ends.from), keys_of(guard), slow_out);
    Link receiver(std::move(ends.to), keys_of(guard), slow_in);
    const Buffer out = pattern(2000, 1);
    Buffer in(out.size());
    sender.send(kStamp, 0, out);
    sender.send(kStamp, 1, {});
    receiver.recv(kStamp, 0, in);
    receiver.recv(kStamp, 1, {});
    ASSERT_OK(move(sender, receiver));
    EXPECT_TRUE(text_of(in) == text_of(out));
    EXPECT_EQ(receiver.recvs_done(), 2U);
    EXPECT_EQ(slow_out.sent(), frame_size(2000, guard) + frame_size(0, guard));
    // The last words, too.
    receiver.recv(kStamp, 2, in);
    sender.finish(FrameKind::kGoodbye, kStamp, {});
    EXPECT_EQ(move(sender, receiver).failure(), Failure::kDesync);
  }
}

TEST(LinkFaults, AWaitingBetweenMessagesChangesNoByteOfThem) {
  constexpr Stamp kOther{std::byte{8}};
  for (const Guard guard : kGuards) {
    for (const std::size_t most : {std::size_t{1}, std::size_t{100}, kMaxPayload}) {
      for (const std::size_t size : {std::size_t{0}, std::size_t{10}, std::size_t{700}}) {
        Ends ends = make_pair();
        FaultyCalls slow_in({.most = most});
        Link sender(std::move(ends.from), keys_of(guard));
        Link receiver(std::move(ends.to), keys_of(guard), slow_in);
        const Buffer out = pattern(size, 1);
        Buffer in(size);
        for (std::uint32_t part = 0; part < 3; ++part) {
          sender.say_waiting(part < 2 ? kStamp : kOther);
          sender.say_waiting(kOther);  // once is enough
          sender.send(kStamp, part, out);
          ASSERT_OK(sender.progress().status());
        }
        // Nobody has posted anything yet: it is heard all the same.
        EXPECT_EQ(receiver.unclaimed(), kStamp);
        EXPECT_EQ(receiver.peer_waits_in(), kStamp);
        for (std::uint32_t part = 0; part < 3; ++part) {
          std::fill(in.begin(), in.end(), std::byte{});
          receiver.recv(kStamp, part, in);
          ASSERT_OK(move(sender, receiver)) << size << " " << part << " " << most;
          EXPECT_TRUE(text_of(in) == text_of(out));
        }
        EXPECT_EQ(receiver.recvs_done(), 3U);
        EXPECT_EQ(sender.sends_done(), 3U);
        EXPECT_EQ(receiver.peer_waits_in(), kOther);
        sender.finish(FrameKind::kGoodbye, kStamp, {});
        EXPECT_EQ(receiver.unclaimed(), std::nullopt);
      }
    }
  }
}

// What the last words say is quoted by everybody.
const Status kWhy = Status::disconnected(
    "rank 5: all_reduce #7: rank 6 died",
    {.failure = Failure::kPeerDied, .rank = Rank{5}, .peer = Rank{6}, .op = "all_reduce", .sequence = 7});

// What the receiver makes of them.
Status hear_why(Guard guard, const LinkFaults& faults, SocketCalls& received_by = SocketCalls::kernel()) {
  Ends ends = make_pair();
  FaultyCalls spoilt(faults);
  Link sender(std::move(ends.from), keys_of(guard), spoilt);
  Link receiver(std::move(ends.to), keys_of(guard), received_by);
  Buffer in(10);
  receiver.recv(kStamp, 0, in);
  const Buffer words = base::write_status(kWhy);
  sender.finish(FrameKind::kAbort, kStamp, words);
  return move(sender, receiver);
}

TEST(LinkFaults, OneBitOfTheLastWordsThatArrivesWrongIsNoticed) {
  for (const Guard guard : kGuards) {
    const std::size_t bits = frame_size(base::write_status(kWhy).size(), guard) * 8;
    for (std::size_t bit = 0; bit < bits; ++bit) {
      const Status status = hear_why(guard, {.flip = bit});
      ASSERT_EQ(status.failure(), Failure::kCorruptFrame) << "bit " << bit << ": " << status.text();
      ASSERT_EQ(status.code(), Code::kDisconnected);
    }
  }
}

TEST(LinkFaults, LastWordsThatAreCutOffAreKnownAsSuch) {
  for (const Guard guard : kGuards) {
    const std::size_t size = frame_size(base::write_status(kWhy).size(), guard);
    for (std::size_t after = 0; after < size; ++after) {
      const Status status = hear_why(guard, {.cut = LinkFaults::Cut{.after = after, .how = How::kEnd}});
      ASSERT_EQ(status.failure(), after < kHeaderSize ? Failure::kPeerDied : Failure::kRemoteError) << after;
    }
  }
}

// A few bytes, then nothing for a while.
class InPieces final : public SocketCalls {
 public:
  explicit InPieces(std::size_t most) : pieces_({.most = most}) {}
  ssize_t send(int socket, const msghdr& message) override { return pieces_.send(socket, message); }
  ssize_t recv(int socket, msghdr& message) override {
    quiet_ = !quiet_;
    if (!quiet_) return pieces_.recv(socket, message);
    errno = EAGAIN;
    return -1;
  }
  void connecting(Rank) override {}

 private:
  FaultyCalls pieces_;
  bool quiet_ = false;
};

// What had not come with the first bytes of them was lost, and who brought them was taken for the culprit.
TEST(LinkFaults, LastWordsThatComeInPiecesAreHeardWhole) {
  for (const Guard guard : kGuards) {
    for (const std::size_t most : {std::size_t{1}, std::size_t{70}, kMaxPayload}) {
      InPieces calls(most);
      const Status status = hear_why(guard, {}, calls);
      EXPECT_EQ(status.text(), kWhy.text()) << most;
      EXPECT_EQ(status.cause(), kWhy.cause()) << most;
    }
  }
}

// What has come is not read before the test says so.
class HeldBack final : public SocketCalls {
 public:
  ssize_t send(int socket, const msghdr& message) override {
    const ssize_t sent = kernel().send(socket, message);
    failed_ |= sent < 0;
    return sent;
  }
  ssize_t recv(int socket, msghdr& message) override {
    if (!held_) return kernel().recv(socket, message);
    errno = EAGAIN;
    return -1;
  }
  void connecting(Rank) override {}

  void let_go() { held_ = false; }
  bool has_failed() const { return failed_; }

 private:
  bool held_ = true;
  bool failed_ = false;
};

TEST(LinkFaults, WhatOneThatHasLeftSentBeforeIsReadThoughNothingCanBeSentToIt) {
  for (const Guard guard : kGuards) {
    Ends ends = connect_ends();
    HeldBack calls;
    Link receiver(std::move(ends.to), keys_of(guard), calls);
    const Buffer out = pattern(700, 1);
    {
      Link sender(std::move(ends.from), keys_of(guard));
      sender.send(kStamp, 0, out);
      ASSERT_OK(sender.progress().status());
      sender.finish(FrameKind::kGoodbye, kStamp, {});
    }
    Buffer in(out.size());
    receiver.recv(kStamp, 0, in);
    for (int i = 0; i < 2; ++i) {  // the first is answered by a reset
      receiver.say_waiting(kStamp);
      ASSERT_OK(receiver.progress().status());
    }
    ASSERT_TRUE(calls.has_failed());
    calls.let_go();
    ASSERT_OK(receiver.progress().status());
    EXPECT_EQ(receiver.recvs_done(), 1U);
    EXPECT_EQ(in, out);
    // That it waits, one that has gone need not hear; a message is another thing.
    receiver.say_waiting(kStamp);
    EXPECT_OK(receiver.progress().status());
    EXPECT_FALSE(receiver.pending());
    receiver.send(kStamp, 0, out);
    EXPECT_THAT(receiver.progress().status(), FailureIs(Failure::kPeerDied));
  }
}

// An operation in place still reads what a later message will replace.
TEST(LinkFaults, OnlyTheExpectedMessageTouchesABufferThatWaitsForIt) {
  for (const Guard guard : kGuards) {
    for (const std::size_t most : {std::size_t{1}, std::size_t{100}, kMaxPayload}) {
      for (const std::size_t size : {std::size_t{10}, std::size_t{700}, std::size_t{9000}}) {
        Ends ends = make_pair();
        FaultyCalls slow_in({.most = most});
        Link sender(std::move(ends.from), keys_of(guard));
        Link receiver(std::move(ends.to), keys_of(guard), slow_in);
        const Buffer before = pattern(size, 2);
        Buffer in = before;
        receiver.recv(kStamp, 0, in);
        for (int waitings = 0; waitings < 3; ++waitings) {
          sender.say_waiting(kStamp);
          ASSERT_OK(sender.progress().status());
        }
        for (bool moved = true; moved;) {
          auto progress = receiver.progress();
          ASSERT_OK(progress.status());
          moved = *progress;
        }
        EXPECT_EQ(receiver.peer_waits_in(), kStamp);
        EXPECT_TRUE(in == before) << size << " " << most;
        const Buffer out = pattern(size, 1);
        sender.send(kStamp, 0, out);
        ASSERT_OK(move(sender, receiver)) << size << " " << most;
        EXPECT_TRUE(in == out) << size << " " << most;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::transport::link
