#include "lockstep/transport/link/door.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <thread>

#include "lockstep/base/handshake.h"
#include "lockstep/base/net.h"
#include "lockstep/testing/status_matchers.h"
#include "lockstep/transport/link/errand.h"

namespace lockstep::transport::link {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::StatusIs;
using ::testing::HasSubstr;

TEST(Door, WhoeverWaitsForTheAnswerOfADoorHearsThatTheGroupHasFailed) {
  // The kernel takes the connection, and nobody answers, as on a wire that is cut just then.
  const UniqueFd silent = base::listen_on(*base::SocketAddress::parse("127.0.0.1", 0)).value();
  const Identity identity{
      .job_id = "job", .secret = Secret::generate(), .rank = Rank{0}, .world = WorldSize{2}};
  const auto answer = knock({.identity = identity,
                             .addresses = {*base::local_address(silent.get())},
                             .look = [] { return Status::aborted("rank 3 cannot be reached"); }},
                            Clock::steady().in(1h));
  EXPECT_THAT(answer.status(), StatusIs(Code::kAborted, HasSubstr("rank 3 cannot be reached")));
}

TEST(Door, WhoeverHasAPartOfTheAnswerOfADoorHearsThatTheGroupHasFailed) {
  const UniqueFd listener = base::listen_on(*base::SocketAddress::parse("127.0.0.1", 0)).value();
  std::atomic<bool> over = false;
  std::thread porter([&] {
    pollfd coming{.fd = listener.get(), .events = POLLIN, .revents = 0};
    (void)::poll(&coming, 1, -1);
    const UniqueFd guest(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::byte first{1};
    EXPECT_OK(base::send_all(guest.get(), {&first, 1}, Clock::steady().in(30s), "the first byte"));
    over.wait(false);
  });
  const Identity identity{
      .job_id = "job", .secret = Secret::generate(), .rank = Rank{0}, .world = WorldSize{2}};
  int looks = 0;
  const auto answer = knock(
      {.identity = identity,
       .addresses = {*base::local_address(listener.get())},
       .look = [&looks] { return ++looks < 3 ? Status() : Status::aborted("rank 3 cannot be reached"); }},
      Clock::steady().in(60s));
  EXPECT_THAT(answer.status(), StatusIs(Code::kAborted, HasSubstr("rank 3 cannot be reached")));
  over = true;
  over.notify_all();
  porter.join();
}

// Passes bytes between two sockets until one of them ends.
void relay(const UniqueFd& one, const UniqueFd& other) {
  std::array<pollfd, 2> ends{{{.fd = one.get(), .events = POLLIN, .revents = 0},
                              {.fd = other.get(), .events = POLLIN, .revents = 0}}};
  while (::poll(ends.data(), ends.size(), -1) > 0) {
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (ends[i].revents == 0) continue;
      std::array<std::byte, 512> bytes{};
      const ssize_t count = ::recv(ends[i].fd, bytes.data(), bytes.size(), 0);
      if (count <= 0) return;
      const ByteView got = ByteView(bytes).first(static_cast<std::size_t>(count));
      if (!base::send_all(ends[1 - i].fd, got, Clock::steady().in(30s), "passing on").ok()) return;
    }
  }
}

// As one does that takes us for too slow.
TEST(Door, ThatClosesBeforeItHasSaidWhyIsTriedAgain) {
  const Secret secret = Secret::generate();
  const Identity identity{.job_id = "job", .secret = secret, .rank = Rank{1}, .world = WorldSize{2}};
  const base::SocketAddress anywhere = *base::SocketAddress::parse("127.0.0.1", 0);
  auto door =
      Door::open({.identity = {.job_id = "job", .secret = secret, .rank = Rank{0}}, .addresses = {anywhere}});
  ASSERT_OK(door.status());
  auto listener = base::listen_on(anywhere);
  ASSERT_OK(listener.status());
  const base::SocketAddress in_front = *base::local_address(listener->get());
  std::thread porter([&] {
    const auto accept = [&] {
      pollfd coming{.fd = listener->get(), .events = POLLIN, .revents = 0};
      (void)::poll(&coming, 1, -1);
      return UniqueFd(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
    };
    for (int i = 0; i < 3; ++i) {
      const UniqueFd turned_away = accept();
      std::array<std::byte, 16> some{};
      (void)::recv(turned_away.get(), some.data(), some.size(), 0);  // in the middle of the hello
    }
    const UniqueFd guest = accept();
    auto behind = base::connect_to((*door)->addresses()[0], Clock::steady().in(30s), base::OnRefused::kFail);
    ASSERT_OK(behind.status());
    relay(guest, *behind);
  });
  int looks = 0;
  {
    const auto arrival = knock({.identity = identity,
                                .group = 7,
                                .addresses = {in_front},
                                .look =
                                    [&looks] {
                                      ++looks;
                                      return Status();
                                    }},
                               Clock::steady().in(60s));
    EXPECT_OK(arrival.status());
  }
  EXPECT_GE(looks, 3);
  porter.join();
}

TEST(Door, ThatClosesOnUsIsNotTriedAgainOnceTheGroupHasFailed) {
  auto listener = base::listen_on(*base::SocketAddress::parse("127.0.0.1", 0));
  ASSERT_OK(listener.status());
  const base::SocketAddress address = *base::local_address(listener->get());
  std::thread porter([&] {
    pollfd coming{.fd = listener->get(), .events = POLLIN, .revents = 0};
    (void)::poll(&coming, 1, -1);
    const UniqueFd turned_away(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
  });
  const Identity identity{.job_id = "job", .rank = Rank{1}, .world = WorldSize{2}};
  const auto arrival = knock({.identity = identity,
                              .addresses = {address},
                              .look = [] { return Status::aborted("the group has failed"); }},
                             Clock::steady().in(60s));
  EXPECT_THAT(arrival.status(), StatusIs(Code::kAborted, HasSubstr("has failed")));
  porter.join();
}

// Lets one guest in and answers what it brings by an errand, with nothing behind it.
void answer_by(const Errand& errand, const UniqueFd& listener, const Secret& secret) {
  const Deadline limit = Clock::steady().in(30s);
  pollfd coming{.fd = listener.get(), .events = POLLIN, .revents = 0};
  (void)::poll(&coming, 1, -1);
  const UniqueFd guest(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  base::ServerHandshake handshake(
      [&](const base::ClientClaim&) { return base::ServerHandshake::Decision{.secret = secret}; });
  std::array<std::byte, base::kClientHelloSize> hello{};
  ASSERT_OK(base::recv_all(guest.get(), hello, limit, "the hello"));
  ASSERT_OK(base::send_all(guest.get(), handshake.on_client_hello(hello), limit, "the hello"));
  std::array<std::byte, base::kProofSize> proof{};
  ASSERT_OK(base::recv_all(guest.get(), proof, limit, "the proof"));
  ASSERT_OK(base::send_all(guest.get(), handshake.on_proof(proof), limit, "the verdict"));
  ASSERT_OK(base::send_all(guest.get(), write_errand(errand), limit, "the answer"));
  std::array<std::byte, 512> news{};
  while (::recv(guest.get(), news.data(), news.size(), 0) > 0) {
  }
}

TEST(Door, AnAnswerThatIsNoneToTheNewsIsNotReadFurther) {
  const Secret secret = Secret::generate();
  const Identity identity{.job_id = "job", .secret = secret, .rank = Rank{0}, .world = WorldSize{2}};
  for (const Errand& errand : {Errand{.kind = ErrandKind::kLink, .group = 7, .stream = 60'000},
                               Errand{.kind = ErrandKind::kNews, .group = 8, .stream = 100},
                               Errand{.kind = ErrandKind::kHasLeft, .group = 8}}) {
    const UniqueFd listener = base::listen_on(*base::SocketAddress::parse("127.0.0.1", 0)).value();
    std::thread porter([&] { answer_by(errand, listener, secret); });
    const auto answer =
        bring_news({.identity = identity, .group = 7, .addresses = {*base::local_address(listener.get())}},
                   Status::aborted("the group has failed"), Clock::steady().in(10s));
    EXPECT_THAT(answer.status(), StatusIs(Code::kDisconnected, HasSubstr("is none")));
    EXPECT_EQ(answer.status().failure(), Failure::kCorruptFrame);
    porter.join();
  }
}

}  // namespace
}  // namespace lockstep::transport::link
