#include "lockstep/base/net.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <thread>

#include "lockstep/base/bytes.h"
#include "lockstep/base/text.h"

namespace lockstep::base {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Deadline soon() { return Clock::steady().in(60s); }

SocketAddress address(std::string_view host, std::uint16_t port = 0) {
  auto parsed = SocketAddress::parse(host, port);
  EXPECT_TRUE(parsed.ok()) << parsed.status().text();
  return *parsed;
}

TEST(ParseEndpoint, TakesNamesAddressesAndPorts) {
  struct Case {
    std::string_view text, host;
    std::uint16_t port;
  };
  for (const Case& c :
       {Case{"node7:29500", "node7", 29500}, Case{"10.0.0.1:80", "10.0.0.1", 80}, Case{"[::1]:0", "::1", 0},
        Case{"[fe80::1%eth0]:80", "fe80::1%eth0", 80},
        Case{"a_b-c.example.org:65535", "a_b-c.example.org", 65535}, Case{"node7", "node7", 9},
        Case{"[::1]", "::1", 9}, Case{"::1", "::1", 9}, Case{"fe80::1%2", "fe80::1%2", 9}}) {
    const auto endpoint = parse_endpoint(c.text, 9);
    ASSERT_TRUE(endpoint.ok()) << endpoint.status().text();
    EXPECT_EQ(*endpoint, (Endpoint{std::string(c.host), c.port}));
    EXPECT_EQ(*parse_endpoint(endpoint->text()), *endpoint);
  }
}

TEST(ParseEndpoint, SaysWhatIsWrong) {
  struct Case {
    std::string_view text, problem;
  };
  for (const Case& c : {Case{"", "it is empty"},
                        Case{":80", "the host is missing"},
                        Case{"node7", "the port is missing"},
                        Case{"[::1]", "the port is missing"},
                        Case{"node7:", "\"\" is not a port"},
                        Case{"node7:65536", "\"65536\" is not a port from 0 to 65535"},
                        Case{"node7:-1", "is not a port"},
                        Case{"node7: 80", "is not a port"},
                        Case{"node7:80x", "is not a port"},
                        Case{"::1", "needs brackets"},
                        Case{"[::1", "bracket is not closed"},
                        Case{"[::1]80", "comes a colon"},
                        Case{"[node7]:80", "for IPv6"},
                        Case{"[]:80", "for IPv6"},
                        Case{"[::g]:80", "not an IPv6 address"},
                        Case{"[fe80::1%]:80", "not an IPv6"},
                        Case{"10.0.0.256:80", "not an IPv4 address"},
                        Case{"10.0.0:80", "not an IPv4 address"},
                        Case{"tcp://node7:80", "a URL"},
                        Case{"node 7:80", "no \" \" in it"},
                        Case{"user@host:80", "no \"@\" in it"},
                        Case{std::string_view("a\0b:80", 6), "no \"\\x00\" in it"},
                        Case{std::string_view("[::1\0]:80", 9), "not an IPv6 address"}}) {
    const auto endpoint = parse_endpoint(c.text);
    ASSERT_FALSE(endpoint.ok()) << c.text;
    EXPECT_EQ(endpoint.status().code(), Code::kInvalid);
    EXPECT_THAT(std::string(endpoint.status().message()),
                AllOf(HasSubstr(c.problem), HasSubstr("is not host:port")));
  }
  EXPECT_THAT(std::string(parse_endpoint(std::string(300, 'a') + ":1").status().message()),
              HasSubstr("longer than"));
}

TEST(SocketAddress, ParsesAndPrintsNumericAddresses) {
  EXPECT_EQ(address("127.0.0.1", 80).text(), "127.0.0.1:80");
  EXPECT_EQ(address("::1", 80).text(), "[::1]:80");
  EXPECT_EQ(address("[::1]", 80).host(), "::1");
  EXPECT_EQ(address("fe80::1%lo", 80).text(), "[fe80::1%lo]:80");
  EXPECT_EQ(address("fe80::1%1"), address("fe80::1%lo"));
  EXPECT_EQ(address("fe80::1%4000000000").host(), "fe80::1%4000000000");
  EXPECT_EQ(address("10.1.2.3", 80).with_port(81), address("10.1.2.3", 81));
  EXPECT_EQ(address("::2", 80).with_port(81).port(), 81);
}

TEST(SocketAddress, RefusesNamesAndOldSpellings) {
  for (const std::string_view host : {"localhost", "", "1", "127.1", "0x7f.0.0.1", "127.0.0.1 ",
                                      "::1::", "[::1", "fe80::1%no_such_if", "[]"})
    EXPECT_EQ(SocketAddress::parse(host, 1).status().code(), Code::kInvalid) << host;
  EXPECT_FALSE(SocketAddress::parse(std::string_view("127.0.0.1\0", 10), 1).ok());
}

TEST(SocketAddress, KnowsLoopbackAndAny) {
  for (const char* host : {"127.0.0.1", "127.255.0.9", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(address(host).is_loopback()) << host;
    EXPECT_FALSE(address(host).is_any()) << host;
  }
  for (const char* host : {"0.0.0.0", "::", "::ffff:0.0.0.0"}) {
    EXPECT_FALSE(address(host).is_loopback()) << host;
    EXPECT_TRUE(address(host).is_any()) << host;
  }
  for (const char* host : {"10.0.0.1", "128.0.0.1", "fe80::1", "::ffff:10.0.0.1"}) {
    EXPECT_FALSE(address(host).is_loopback()) << host;
    EXPECT_FALSE(address(host).is_any()) << host;
  }
}

TEST(SocketAddress, ComparesEverything) {
  EXPECT_EQ(address("::1", 1), address("::1", 1));
  EXPECT_NE(address("::1", 1), address("::1", 2));
  EXPECT_NE(address("::1", 1), address("::2", 1));
  EXPECT_NE(address("fe80::1%1", 1), address("fe80::1%2", 1));
  EXPECT_NE(address("127.0.0.1", 1), address("::ffff:127.0.0.1", 1));
  EXPECT_EQ(SocketAddress(), SocketAddress());
}

TEST(Resolve, NumericAddressesNeedNoLookUp) {
  const auto found = resolve({"fe80::1%lo", 7}, Clock::steady().in(0s));
  ASSERT_TRUE(found.ok()) << found.status().text();
  EXPECT_THAT(*found, ::testing::ElementsAre(address("fe80::1%lo", 7)));
}

TEST(Resolve, LocalhostIsLoopback) {
  const auto found = resolve({"localhost", 7}, soon());
  ASSERT_TRUE(found.ok()) << found.status().text();
  ASSERT_FALSE(found->empty());
  for (const SocketAddress& each : *found) {
    EXPECT_TRUE(each.is_loopback()) << each.text();
    EXPECT_EQ(each.port(), 7);
  }
}

TEST(Resolve, BadNamesAndLateCallsAreErrors) {
  EXPECT_EQ(resolve({"no host", 7}, soon()).status().code(), Code::kInvalid);
  EXPECT_EQ(resolve({"", 7}, soon()).status().code(), Code::kInvalid);
  EXPECT_EQ(resolve({"localhost", 7}, Clock::steady().in(0s)).status().code(), Code::kTimeout);
}

TEST(Interfaces, LoopbackIsAmongThem) {
  const auto found = interfaces();
  ASSERT_TRUE(found.ok()) << found.status().text();
  const auto lo = std::ranges::find(*found, "lo", &Interface::name);
  ASSERT_NE(lo, found->end());
  EXPECT_TRUE(lo->loopback);
  EXPECT_TRUE(lo->up);
  EXPECT_THAT(lo->addresses, ::testing::Contains(address("127.0.0.1")));
}

TEST(LocalAddressTowards, LoopbackReachesLoopback) {
  const auto local = local_address_towards(address("127.0.0.1", 0));
  ASSERT_TRUE(local.ok()) << local.status().text();
  EXPECT_EQ(*local, address("127.0.0.1", 0));
}

TEST(ListenOn, PicksAPortAndIsConnectable) {
  for (const char* host : {"127.0.0.1", "::1"}) {
    auto listener = listen_on(address(host));
    ASSERT_TRUE(listener.ok()) << listener.status().text();
    const auto bound = local_address(listener->get());
    ASSERT_TRUE(bound.ok());
    EXPECT_EQ(bound->host(), host);
    EXPECT_NE(bound->port(), 0);
    EXPECT_NE(fcntl(listener->get(), F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_NE(fcntl(listener->get(), F_GETFL) & O_NONBLOCK, 0);
    auto client = connect_to(*bound, soon(), OnRefused::kFail);
    ASSERT_TRUE(client.ok()) << client.status().text();
    EXPECT_EQ(*peer_address(client->get()), *bound);
    EXPECT_NE(fcntl(client->get(), F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_NE(fcntl(client->get(), F_GETFL) & O_NONBLOCK, 0);
    int no_delay = 0;
    socklen_t size = sizeof(no_delay);
    ASSERT_EQ(getsockopt(client->get(), IPPROTO_TCP, TCP_NODELAY, &no_delay, &size), 0);
    EXPECT_NE(no_delay, 0);
  }
}

TEST(ListenOn, ATakenPortNamesThisProcess) {
  auto first = listen_on(address("127.0.0.1"));
  ASSERT_TRUE(first.ok());
  const SocketAddress bound = *local_address(first->get());
  EXPECT_EQ(listener_pid(bound.port()), getpid());
  for (const char* host : {"127.0.0.1", "0.0.0.0"}) {
    const Status status = listen_on(address(host, bound.port())).status();
    EXPECT_EQ(status.code(), Code::kInvalid);
    EXPECT_EQ(status.failure(), Failure::kPortTaken);
    EXPECT_EQ(status.cause().pid, getpid());
    EXPECT_EQ(status.message(), cat("port ", bound.port(), " on ", host, " is taken by this process itself"));
  }
}

TEST(ListenOn, ATakenPortNamesTheOtherProcess) {
  int ready[2], finish[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(finish, O_CLOEXEC), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(finish[1]);
    auto listener = listen_on(address("::1"));
    const std::uint16_t port = listener.ok() ? local_address(listener->get())->port() : 0;
    char byte = 0;
    if (write(ready[1], &port, sizeof(port)) != sizeof(port)) _exit(1);
    _exit(read(finish[0], &byte, 1) == 0 ? 0 : 1);
  }
  const UniqueFd ready_read(ready[0]), ready_write(ready[1]), finish_read(finish[0]);
  UniqueFd finish_write(finish[1]);
  std::uint16_t port = 0;
  ASSERT_EQ(read(ready_read.get(), &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
  const Status status = listen_on(address("::1", port)).status();
  EXPECT_EQ(status.failure(), Failure::kPortTaken);
  EXPECT_EQ(status.cause().pid, child);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(cat("is taken by pid ", child, " (", program_invocation_short_name, ")")));
  // A listener of that port on another address, which nobody else uses, is not the one in the way.
  EXPECT_TRUE(listen_on(address("127.3.5.7", port)).ok());
  finish_write.reset();
  int exit_status = 0;
  ASSERT_EQ(waitpid(child, &exit_status, 0), child);
  EXPECT_EQ(exit_status, 0);
}

TEST(ListenOn, AForeignAddressIsNamed) {
  // 192.0.2.0/24 is for documentation: no host has it.
  const Status status = listen_on(address("192.0.2.1", 80)).status();
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_THAT(std::string(status.message()), HasSubstr("192.0.2.1 is not an address of this host"));
}

TEST(WatchConnection, AsksTheOtherHostAsOftenAsItIsTold) {
  const auto socket = listen_on(address("127.0.0.1"));
  ASSERT_TRUE(socket.ok());
  watch_connection(socket->get(), {.idle = 7s, .interval = 3s});
  const auto option = [&](int level, int name) {
    int value = -1;
    socklen_t size = sizeof(value);
    EXPECT_EQ(getsockopt(socket->get(), level, name, &value, &size), 0);
    return value;
  };
  EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPIDLE), 7);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPINTVL), 3);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_NODELAY), 1);
}

TEST(ListenerPid, IsEmptyForAFreePort) {
  auto held = hold_port(address("127.0.0.1"));
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(listener_pid(local_address(held->get())->port()), std::nullopt);
}

TEST(HoldPort, HoldsTheNumberAndLetsAListenerIn) {
  auto held = hold_port(address("127.0.0.1"));
  ASSERT_TRUE(held.ok()) << held.status().text();
  const SocketAddress port = *local_address(held->get());
  ASSERT_NE(port.port(), 0);
  EXPECT_EQ(connect_to(port, soon(), OnRefused::kFail).status().code(), Code::kDisconnected);
  auto listener = listen_on(port);
  ASSERT_TRUE(listener.ok()) << listener.status().text();
  EXPECT_TRUE(connect_to(port, soon(), OnRefused::kFail).ok());
}

TEST(ConnectTo, ARefusalIsNamedAtOnce) {
  auto held = hold_port(address("127.0.0.1"));
  const SocketAddress port = *local_address(held->get());
  const Status status = connect_to(port, soon(), OnRefused::kFail).status();
  EXPECT_EQ(status.code(), Code::kDisconnected);
  EXPECT_EQ(status.failure(), Failure::kNobodyListens);
  EXPECT_THAT(std::string(status.message()), HasSubstr(cat("nobody listens on ", port.text())));
}

TEST(ConnectTo, RetriesUntilTheDeadline) {
  auto held = hold_port(address("127.0.0.1"));
  const SocketAddress port = *local_address(held->get());
  const Status status = connect_to(port, Clock::steady().in(30ms), OnRefused::kRetry).status();
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_EQ(status.failure(), Failure::kPeerUnreachable);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(port.text()), HasSubstr("nobody listens")));
}

TEST(ConnectTo, RetriesUntilTheListenerComes) {
  auto held = hold_port(address("127.0.0.1"));
  const SocketAddress port = *local_address(held->get());
  std::optional<Result<UniqueFd>> client;
  std::thread connecting([&] { client = connect_to(port, soon(), OnRefused::kRetry); });
  auto listener = listen_on(port);
  connecting.join();
  ASSERT_TRUE(listener.ok());
  EXPECT_TRUE(client->ok()) << client->status().text();
}

TEST(ConnectTo, AFullQueueEndsAtTheDeadline) {
  // A listener that nobody accepts from: once its queue is full, the kernel drops what comes.
  auto listener = listen_on(address("127.0.0.1"), 0);
  ASSERT_TRUE(listener.ok());
  const SocketAddress port = *local_address(listener->get());
  std::vector<UniqueFd> queued;
  Status status;
  while (status.ok() && queued.size() < 16) {
    auto client = connect_to(port, Clock::steady().in(50ms), OnRefused::kFail);
    status = client.status();
    if (client.ok()) queued.push_back(std::move(client).value());
  }
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(port.text()), HasSubstr("there is no answer")));
}

class Connected : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    near_ = UniqueFd(ends[0]);
    far_ = UniqueFd(ends[1]);
  }
  UniqueFd near_, far_;
};

TEST_F(Connected, ManyBytesPassThroughASmallBuffer) {
  Buffer sent(5'000'000), received(sent.size());
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 7919 >> 3);
  Status status;
  std::thread sender([&] { status = send_all(near_.get(), sent, soon(), "sending"); });
  const Status receiving = recv_all(far_.get(), received, soon(), "receiving");
  sender.join();
  EXPECT_TRUE(status.ok()) << status.text();
  ASSERT_TRUE(receiving.ok()) << receiving.text();
  EXPECT_TRUE(sent == received);
}

TEST_F(Connected, APeerThatClosesIsDisconnected) {
  ASSERT_TRUE(send_all(far_.get(), bytes_of("abc"), soon(), "x").ok());
  far_.reset();
  Buffer four(4);
  const Status received = recv_all(near_.get(), four, soon(), "the store's answer");
  EXPECT_EQ(received.code(), Code::kDisconnected);
  EXPECT_THAT(std::string(received.message()),
              AllOf(StartsWith("the store's answer: "), HasSubstr("after 3 of 4 bytes were received")));
  // No SIGPIPE: the test would die.
  const Status sent = send_all(near_.get(), four, soon(), "the request");
  EXPECT_EQ(sent.code(), Code::kDisconnected);
  EXPECT_THAT(std::string(sent.message()), StartsWith("the request: "));
}

TEST_F(Connected, SilenceEndsAtTheDeadline) {
  Buffer one(1), many(10'000'000);
  const Status received = recv_all(near_.get(), one, Clock::steady().in(10ms), "the hello");
  EXPECT_EQ(received.code(), Code::kTimeout);
  EXPECT_THAT(std::string(received.message()), AllOf(StartsWith("the hello: "), HasSubstr("0 of 1 bytes")));
  EXPECT_EQ(send_all(near_.get(), many, Clock::steady().in(10ms), "the request").code(), Code::kTimeout);
}

TEST_F(Connected, WhatIsThereIsReadEvenAfterTheDeadline) {
  ASSERT_TRUE(send_all(far_.get(), bytes_of("abc"), soon(), "x").ok());
  Buffer three(3);
  EXPECT_TRUE(recv_all(near_.get(), three, Clock::steady().in(0s), "x").ok());
}

}  // namespace
}  // namespace lockstep::base
