// Who is let in, who is not, and what that costs: F12-F17 of the fault list, as far as one process shows it.
#include "lockstep/store/tcp_server.h"

#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <unistd.h>

#include <thread>

#include "lockstep/base/crypto.h"
#include "lockstep/base/text.h"
#include "lockstep/store/tcp_connect.h"
#include "lockstep/store/tcp_frame.h"
#include "lockstep/store/tcp_test_support.h"
#include "lockstep/store/tcp_wire.h"
#include "lockstep/testing/thread_limit.h"

namespace lockstep::store {
namespace {

using ::lockstep::testing::FailureIs;
using ::lockstep::testing::IsOkAnd;
using ::lockstep::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string told(const Result<Buffer>& value) { return value.ok() ? std::string(text_of(*value)) : "error"; }

// A store that works, to show that nothing else harmed it.
class Bystander {
 public:
  explicit Bystander(const TestServer& server) : store_(server.connect()) {}
  ~Bystander() {
    EXPECT_OK(store_->set("bystander", bytes_of("unharmed")));
    EXPECT_EQ(told(store_->get("bystander")), "unharmed");
  }

 private:
  std::unique_ptr<TcpStore> store_;
};

// F13. Both ways in, with one thing wrong each.
TEST(TcpServer, RejectsAWrongJobSecretOrEpochAndTheJobGoesOn) {
  for (const LocalSocket local : {LocalSocket::kOff, LocalSocket::kOn}) {
    const TestServer server;
    const Bystander bystander(server);
    CapturedLog log;
    TcpStoreOptions wrong_job = server.client_options(local);
    wrong_job.job_id = "other";
    TcpStoreOptions wrong_epoch = server.client_options(local);
    wrong_epoch.epoch = 7;
    TcpStoreOptions wrong_secret = server.client_options(local);
    wrong_secret.secret = Secret::generate();
    TcpStoreOptions no_secret = server.client_options(local);
    no_secret.secret = Secret::insecure();
    const base::TimePoint start = Clock::steady().now();
    for (const TcpStoreOptions* wrong : {&wrong_job, &wrong_epoch, &wrong_secret, &no_secret}) {
      EXPECT_THAT(TcpStore::connect(*wrong, soon()),
                  AllOf(FailureIs(Failure::kRejected), StatusIs(Code::kInvalid, HasSubstr("127.0.0.1"))));
    }
    EXPECT_LT(Clock::steady().now() - start, 20s);
    // One line for the address. Over the local socket, which only the right job and epoch find, the server
    // knows the process, and has one for that.
    EXPECT_EQ(count_of(log.take(), "rejected"), local == LocalSocket::kOn ? 2U : 1U);
  }
}

// F13: a handshake that was overheard opens nothing.
TEST(TcpServer, RejectsAReplayedHandshake) {
  const TestServer server;
  const Bystander bystander(server);
  const CapturedLog log;
  base::ClientHandshake handshake(
      {.role = base::Role::kStore, .job_id = "job", .epoch = 0, .rank = base::kNoRank}, server.secret);
  std::array<std::byte, base::kServerHelloSize> server_hello{};
  std::array<std::byte, base::kVerdictSize> verdict{};
  const base::UniqueFd first = server.stranger();
  ASSERT_OK(base::send_all(first.get(), handshake.hello(), soon(), "test"));
  ASSERT_OK(base::recv_all(first.get(), server_hello, soon(), "test"));
  ASSERT_OK_AND_ASSIGN(const auto proof, handshake.on_server_hello(server_hello));
  ASSERT_OK(base::send_all(first.get(), proof, soon(), "test"));
  ASSERT_OK(base::recv_all(first.get(), verdict, soon(), "test"));
  ASSERT_OK(handshake.on_verdict(verdict));

  const base::UniqueFd second = server.stranger();
  ASSERT_OK(base::send_all(second.get(), handshake.hello(), soon(), "test"));
  ASSERT_OK(base::recv_all(second.get(), server_hello, soon(), "test"));
  ASSERT_OK(base::send_all(second.get(), proof, soon(), "test"));
  ASSERT_OK(base::recv_all(second.get(), verdict, soon(), "test"));
  EXPECT_EQ(static_cast<base::Verdict>(verdict[0]), base::Verdict::kWrongSecret);
  EXPECT_TRUE(is_closed_by_peer(second));
}

// F12, seen by the server: its log line has both versions.
TEST(TcpServer, RefusesAClientOfAnotherVersionAndNamesBoth) {
  const TestServer server;
  const Bystander bystander(server);
  CapturedLog log;
  base::ClientHandshake handshake(
      {.role = base::Role::kStore, .job_id = "job", .epoch = 0, .rank = base::kNoRank}, server.secret);
  auto hello = handshake.hello();
  const auto version = static_cast<std::uint16_t>(base::kWireVersion + 41);
  std::memcpy(hello.data() + 4, &version, sizeof(version));
  const base::UniqueFd socket = server.stranger();
  ASSERT_OK(base::send_all(socket.get(), hello, soon(), "test"));
  EXPECT_TRUE(is_closed_by_peer(socket));
  EXPECT_THAT(log.take(), AllOf(HasSubstr(cat(version)), HasSubstr(cat(" ", base::kWireVersion))));
}

// F12, seen by the client.
TEST(TcpServer, AClientRefusesAServerOfAnotherVersionAndNamesBoth) {
  ASSERT_OK_AND_ASSIGN(const auto address, base::SocketAddress::parse("127.0.0.1", 0));
  ASSERT_OK_AND_ASSIGN(const auto listener, base::listen_on(address));
  ASSERT_OK_AND_ASSIGN(const auto bound, base::local_address(listener.get()));
  std::thread other_version([&] {
    pollfd descriptor{.fd = listener.get(), .events = POLLIN, .revents = 0};
    poll(&descriptor, 1, 60'000);
    const base::UniqueFd socket(accept(listener.get(), nullptr, nullptr));
    std::array<std::byte, base::kClientHelloSize> hello{};
    EXPECT_OK(base::recv_all(socket.get(), hello, soon(), "test"));
    std::array<std::byte, base::kServerHelloSize> answer{};
    std::memcpy(answer.data(), "LKSS", 4);
    const std::uint16_t version = 42;
    std::memcpy(answer.data() + 4, &version, sizeof(version));
    answer[6] = static_cast<std::byte>(base::Verdict::kWrongVersion);
    EXPECT_OK(base::send_all(socket.get(), answer, soon(), "test"));
  });
  const TcpStoreOptions options{.endpoint = {.host = "127.0.0.1", .port = bound.port()}, .job_id = "job"};
  const auto store = TcpStore::connect(options, soon());
  other_version.join();
  EXPECT_THAT(store, FailureIs(Failure::kVersionMismatch));
  EXPECT_THAT(store.status().message(), AllOf(HasSubstr("42"), HasSubstr(cat(base::kWireVersion))));
}

// F14.
TEST(TcpServer, SurvivesHttpRandomBytesAndPortScans) {
  const TestServer server;
  const Bystander bystander(server);
  CapturedLog log;
  const base::UniqueFd http = server.stranger();
  ASSERT_OK(
      send_text(http, "GET / HTTP/1.1\r\nHost: example.org\r\nUser-Agent: something long enough\r\n\r\n"));
  EXPECT_TRUE(is_closed_by_peer(http));
  for (int i = 0; i < 50; ++i) {
    Buffer junk(4096);
    base::random_bytes(junk);
    const base::UniqueFd socket = server.stranger();
    // The server may hang up before it has all of it.
    static_cast<void>(base::send_all(socket.get(), junk, soon(), "test"));
    EXPECT_TRUE(is_closed_by_peer(socket));
    server.stranger().reset();
  }
  EXPECT_EQ(count_of(log.take(), "rejected"), 1U);
}

// F14: those who say nothing, or stop in the middle, are shown out.
TEST(TcpServer, GivesAHandshakeOnlySoMuchTime) {
  TcpServerOptions options;
  options.handshake_timeout = 100ms;
  const TestServer server(std::move(options));
  const Bystander bystander(server);
  const CapturedLog log;
  const base::UniqueFd silent = server.stranger();
  const base::UniqueFd half = server.stranger();
  ASSERT_OK(send_text(half, "LKSC"));
  EXPECT_TRUE(is_closed_by_peer(silent));
  EXPECT_TRUE(is_closed_by_peer(half));
}

// F14: more silent connections than there are places do not keep a client out.
TEST(TcpServer, AThousandSilentConnectionsKeepNobodyOut) {
  const TestServer server;
  const Bystander bystander(server);
  const CapturedLog log;
  std::vector<base::UniqueFd> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(server.stranger());
  const base::TimePoint start = Clock::steady().now();
  EXPECT_OK(server.connect(LocalSocket::kOff)->num_keys());
  EXPECT_LT(Clock::steady().now() - start, 40s);
  EXPECT_OK(server.connect(LocalSocket::kOn)->num_keys());
}

// F15: lengths that are announced and not meant, by one who has the secret.
TEST(TcpServer, DisconnectsAClientThatAnnouncesAnImpossibleLength) {
  for (const LocalSocket local : {LocalSocket::kOff, LocalSocket::kOn}) {
    for (const std::uint64_t length : {std::uint64_t{0}, (std::uint64_t{1} << 31) - 1, std::uint64_t{1} << 32,
                                       std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
      const TestServer server;
      const Bystander bystander(server);
      CapturedLog log;
      ASSERT_OK_AND_ASSIGN(const auto connected, connect_to_server(server.client_options(local), soon()));
      std::array<std::byte, 64> bytes{};
      std::memcpy(bytes.data(), &length, sizeof(length));
      ASSERT_GT(connected.conduit.send(bytes), 0);
      pollfd descriptor{.fd = connected.conduit.receiving(), .events = POLLIN, .revents = 0};
      EXPECT_EQ(poll(&descriptor, 1, 60'000), 1);
      EXPECT_LE(connected.conduit.receive(bytes), 0);
      EXPECT_THAT(log.take(), HasSubstr("disconnected"));
    }
  }
}

// Plain frames let a malformed request through to the parser.
TEST(TcpServer, DisconnectsAClientThatSendsNonsense) {
  const TestServer server;
  const Bystander bystander(server);
  CapturedLog log;
  ASSERT_OK_AND_ASSIGN(const auto connected,
                       connect_to_server(server.client_options(LocalSocket::kOn), soon()));
  FrameWriter writer(FrameKey{});
  Buffer frame;
  writer.write(frame, [](Buffer& out) { out.resize(100, std::byte{0xff}); });
  ASSERT_GT(connected.conduit.send(frame), 0);
  pollfd descriptor{.fd = connected.conduit.receiving(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&descriptor, 1, 60'000), 1);
  EXPECT_EQ(connected.conduit.receive(frame), 0);
  EXPECT_THAT(log.take(), HasSubstr("unknown operation"));
}

// F20: a client that asks and does not read.
TEST(TcpServer, DisconnectsAClientThatDoesNotReadItsAnswers) {
  for (const LocalSocket local : {LocalSocket::kOff, LocalSocket::kOn}) {
    TcpServerOptions options;
    options.max_send_queue = Bytes::mib(8);
    const TestServer server(std::move(options));
    const Bystander bystander(server);
    CapturedLog log;
    ASSERT_OK_AND_ASSIGN(auto connected, connect_to_server(server.client_options(local), soon()));
    FrameWriter writer(connected.keys ? FrameKey(connected.keys->client_to_server) : FrameKey());
    Buffer frames;
    for (std::uint64_t id = 1; id <= 32; ++id) {
      const Request request{.id = id, .op = Op::kGet, .timeout = 60s, .key = "large"};
      writer.write(frames, [&](Buffer& out) { write_request(request, out); });
    }
    ASSERT_EQ(connected.conduit.send(frames), static_cast<ssize_t>(frames.size()));
    const auto other = server.connect(local);
    // Executed after all of the requests above, since the server answers in order of arrival.
    ASSERT_OK(other->num_keys());
    ASSERT_OK(other->set("large", Buffer(1U << 20)));
    ASSERT_OK(other->num_keys());
    EXPECT_THAT(log.take(), AllOf(HasSubstr("disconnected"), HasSubstr("does not read its answers")));
  }
}

// F20: a client that reads slowly gets everything, and holds nobody up.
TEST(TcpServer, ASlowReaderGetsItsAnswersAndHoldsNobodyUp) {
  const TestServer server;
  const auto other = server.connect();
  ASSERT_OK(other->set("large", Buffer(kMaxValueSize)));
  ASSERT_OK_AND_ASSIGN(auto connected, connect_to_server(server.client_options(LocalSocket::kOff), soon()));
  FrameWriter writer(connected.keys->client_to_server);
  FrameReader reader(FrameKey(connected.keys->server_to_client), kMaxMessageSize);
  Buffer frames;
  constexpr int kGets = 4;
  for (std::uint64_t id = 1; id <= kGets; ++id) {
    const Request request{.id = id, .op = Op::kGet, .timeout = 60s, .key = "large"};
    writer.write(frames, [&](Buffer& out) { write_request(request, out); });
  }
  ASSERT_EQ(connected.conduit.send(frames), static_cast<ssize_t>(frames.size()));
  int answers = 0;
  while (answers < kGets) {
    // While it is not reading, others are served.
    ASSERT_OK(other->add("counter", 1));
    pollfd descriptor{.fd = connected.conduit.receiving(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&descriptor, 1, 60'000), 1);
    const ssize_t count = connected.conduit.receive(reader.space());
    ASSERT_GT(count, 0);
    reader.received(static_cast<std::size_t>(count));
    while (true) {
      ASSERT_OK_AND_ASSIGN(const auto message, reader.next());
      if (!message) break;
      Response response;
      ASSERT_OK(parse_response(*message, response));
      EXPECT_EQ(response.body.size(), kMaxValueSize);
      ++answers;
    }
  }
}

TEST(TcpServer, ServesSeveralJobsOnOnePort) {
  const TestServer server;
  const Secret other_secret = Secret::generate();
  const TenantOptions other{.job_id = "other", .epoch = 3, .secret = other_secret};
  ASSERT_OK(server.server->add_tenant(other));
  EXPECT_THAT(server.server->add_tenant(other), StatusIs(Code::kInvalid, HasSubstr("already")));
  for (const LocalSocket local : {LocalSocket::kOff, LocalSocket::kOn}) {
    TcpStoreOptions options = server.client_options(local);
    options.job_id = "other";
    options.epoch = 3;
    options.secret = other_secret;
    ASSERT_OK_AND_ASSIGN(const auto theirs, TcpStore::connect(options, soon()));
    EXPECT_EQ(theirs->is_local(), local == LocalSocket::kOn);
    const auto ours = server.connect(local);
    ASSERT_OK(ours->set("key", bytes_of("ours")));
    ASSERT_OK(theirs->set("key", bytes_of("theirs")));
    EXPECT_EQ(told(ours->get("key")), "ours");
    EXPECT_EQ(told(theirs->get("key")), "theirs");
  }
}

TEST(TcpServer, ANonLoopbackAddressNeedsASecretOrAnExplicitWord) {
  const auto start = [](OpenToAll open_to_all) {
    TcpServerOptions options;
    options.bind_host = "0.0.0.0";
    options.open_to_all = open_to_all;
    options.tenants.push_back({.job_id = "job"});
    return TcpStoreServer::start(std::move(options));
  };
  const auto refused = start(OpenToAll::kRefuse);
  EXPECT_THAT(refused,
              AllOf(FailureIs(Failure::kNoSecret), StatusIs(Code::kInvalid, HasSubstr("lockstep secret"))));
  EXPECT_OK(start(OpenToAll::kAllow));
  TcpServerOptions options;
  options.bind_host = "0.0.0.0";
  options.tenants.push_back({.job_id = "job", .secret = Secret::generate()});
  ASSERT_OK_AND_ASSIGN(const auto server, TcpStoreServer::start(std::move(options)));
  EXPECT_THAT(server->add_tenant({.job_id = "open"}), FailureIs(Failure::kNoSecret));
  EXPECT_EQ(server->endpoint().host, "127.0.0.1");
}

// F16.
TEST(TcpServer, APortThatIsTakenIsNamedWithItsOwner) {
  const TestServer first;
  TcpServerOptions options;
  options.port = first.server->address().port();
  const auto second = TcpStoreServer::start(std::move(options));
  EXPECT_THAT(second, FailureIs(Failure::kPortTaken));
  EXPECT_THAT(second.status().message(),
              AllOf(HasSubstr(cat(first.server->address().port())), HasSubstr("this process")));
}

// F31: no thread left.
TEST(TcpServer, WithoutAThreadItSaysSo) {
  const lockstep::testing::NoMoreThreads limit;
  EXPECT_THAT(TcpStoreServer::start({}).status().message(), HasSubstr("lockstep-store cannot be started"));
}

TEST(TcpServer, ServesAnInheritedSocket) {
  ASSERT_OK_AND_ASSIGN(const auto address, base::SocketAddress::parse("127.0.0.1", 0));
  TcpServerOptions options;
  ASSERT_OK_AND_ASSIGN(options.listening, base::listen_on(address));
  ASSERT_OK_AND_ASSIGN(const auto bound, base::local_address(options.listening.get()));
  const TestServer server(std::move(options));
  EXPECT_EQ(server.server->address(), bound);
  EXPECT_OK(server.connect(LocalSocket::kOff)->num_keys());
}

TEST(TcpServer, ListensOnIPv6) {
  TcpServerOptions options;
  options.bind_host = "::1";
  const TestServer server(std::move(options));
  EXPECT_THAT(server.connect(LocalSocket::kOff)->description(), HasSubstr("[::1]:"));
  EXPECT_TRUE(server.connect(LocalSocket::kOn)->is_local());
}

TEST(TcpServer, MoreConnectionsThanAllowedAreRefusedUntilOneLeaves) {
  const TestServer server({}, TenantOptions{.max_connections = 2});
  const CapturedLog log;
  auto first = server.connect();
  const auto second = server.connect(LocalSocket::kOff);
  const auto third = TcpStore::connect(server.client_options(LocalSocket::kOff), Clock::steady().in(300ms));
  EXPECT_THAT(third, StatusIs(Code::kTimeout, HasSubstr("127.0.0.1")));
  first.reset();
  EXPECT_OK(server.connect()->num_keys());
}

TEST(TcpServer, AfterItsEndEveryCallSaysThatTheStoreIsLost) {
  for (const LocalSocket local : {LocalSocket::kOff, LocalSocket::kOn}) {
    auto server = std::make_unique<TestServer>();
    const auto store = server->connect(local);
    const std::string endpoint = server->server->endpoint().text();
    std::thread waiting([&] {
      EXPECT_THAT(store->get("never"),
                  AllOf(StatusIs(Code::kDisconnected, HasSubstr(endpoint)), FailureIs(Failure::kStoreLost)));
    });
    // Answered after the get has been taken in, on the same connection.
    ASSERT_OK(store->num_keys());
    server.reset();
    waiting.join();
    EXPECT_THAT(store->num_keys(), FailureIs(Failure::kStoreLost));
    EXPECT_THAT(store->set("key", {}), FailureIs(Failure::kStoreLost));
    EXPECT_THAT(store->queue_pop("queue"), FailureIs(Failure::kStoreLost));
    EXPECT_EQ(store->num_keys().status().cause().host, endpoint);
  }
}

TEST(TcpServer, CloseEndsTheConnectionsBeforeTheDestructor) {
  const TestServer server;
  const auto store = server.connect();
  server.server->close();
  EXPECT_THAT(store->get("never"), FailureIs(Failure::kStoreLost));
  EXPECT_THAT(server.server->add_tenant({.job_id = "late"}), FailureIs(Failure::kClosed));
}

}  // namespace
}  // namespace lockstep::store
