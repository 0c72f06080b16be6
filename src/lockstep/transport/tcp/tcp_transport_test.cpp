// TcpTransport against those who do not keep to its protocol, and what only it has: addresses, limits,
// secrets.
#include "lockstep/transport/tcp/tcp_transport.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cstring>
#include <future>
#include <thread>

#include "lockstep/testing/connection_calls.h"
#include "lockstep/testing/fake_clock.h"
#include "lockstep/testing/raw_client.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using transport::Connection;
using transport::Identity;
using transport::Listener;
using transport::Protection;
using transport::tcp::TcpTransport;
using transport::tcp::TcpTransportOptions;

const base::Endpoint kLoopback{.host = "127.0.0.1", .port = 0};

class TcpTransportTest : public ::testing::Test {
 protected:
  TcpTransportTest() : secret_(Secret::generate()) {}

  Identity member(int rank) const {
    Identity identity = identity_of(rank);
    identity.secret = secret_;
    return identity;
  }
  void listen(TcpTransportOptions options = {}) {
    options.identity = member(1);
    rank1_ = TcpTransport::create(std::move(options)).value();
    listener_ = rank1_->listen(kLoopback).value();
  }
  // A member whose bytes we choose, and rank 1's end of it.
  std::unique_ptr<Connection> admit(RawClient& client) {
    EXPECT_OK(client.handshake());
    EXPECT_OK(client.introduce());
    return await(accept(*listener_, soon())).value();
  }
  void expect_a_member_gets_in() {
    const auto rank0 = TcpTransport::create({.identity = member(0)}).value();
    auto accepted = accept(*listener_, soon());
    EXPECT_OK(await(connect(*rank0, {.endpoint = listener_->endpoint(), .rank = Rank(1)}, soon())));
    EXPECT_OK(await(std::move(accepted)));
  }

  const Secret secret_;
  std::unique_ptr<TcpTransport> rank1_;
  std::unique_ptr<Listener> listener_;
};

// F31: whoever connects would wait for an answer until the handshake's limit.
TEST_F(TcpTransportTest, AListenerWithoutDescriptorsSaysSoAndLivesOn) {
  std::promise<Status> told;
  TcpTransportOptions options;
  options.cannot_accept = [&told](const Status& why) { told.set_value(why); };
  listen(std::move(options));
  expect_a_member_gets_in();  // all that it needs was made
  const UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  ASSERT_TRUE(client);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 3, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  sockaddr_in address{.sin_family = AF_INET,
                      .sin_port = htons(listener_->endpoint().port),
                      .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)},
                      .sin_zero = {}};
  (void)connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const Status why = told.get_future().get();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(why.failure(), Failure::kNoDescriptors) << why.text();
  EXPECT_EQ(why.cause().peer, Rank(1));
  expect_a_member_gets_in();
}

// F13.
TEST_F(TcpTransportTest, AnotherSecretIsRefused) {
  listen();
  for (const Secret& secret : {Secret::generate(), Secret::insecure()}) {
    Identity stranger = member(0);
    stranger.secret = secret;
    const auto rank0 = TcpTransport::create({.identity = stranger}).value();
    EXPECT_THAT(await(connect(*rank0, {.endpoint = listener_->endpoint(), .rank = Rank(1)}, soon())),
                FailureIs(Failure::kRejected));
  }
  expect_a_member_gets_in();
}

TEST_F(TcpTransportTest, AReplayedHandshakeIsRefused) {
  listen();
  RawClient member0(listener_->endpoint(), member(0));
  ASSERT_OK(member0.handshake());
  RawClient replay(listener_->endpoint(), member(0));
  ASSERT_OK(replay.send(member0.state().hello()));
  ASSERT_OK(replay.recv(base::kServerHelloSize));
  ASSERT_OK(replay.send(member0.proof()));
  ASSERT_OK_AND_ASSIGN(const Buffer verdict, replay.recv(base::kVerdictSize));
  EXPECT_EQ(verdict[0], static_cast<std::byte>(base::Verdict::kWrongSecret));
  EXPECT_TRUE(replay.is_closed_by_server());
}

TEST_F(TcpTransportTest, AnotherRoleIsRefused) {
  listen();
  RawClient client(listener_->endpoint(), member(0));
  base::ClientHandshake data({.role = base::Role::kData, .job_id = "conformance", .epoch = 3, .rank = 0},
                             secret_);
  ASSERT_OK(client.send(data.hello()));
  ASSERT_OK_AND_ASSIGN(const Buffer hello, client.recv(base::kServerHelloSize));
  EXPECT_EQ(hello[6], static_cast<std::byte>(base::Verdict::kWrongRole));
}

// F12, both ways.
TEST_F(TcpTransportTest, AnotherVersionIsRefusedWithBothInTheText) {
  listen();
  RawClient client(listener_->endpoint(), member(0));
  auto hello = client.state().hello();
  hello[4] = std::byte{99};
  ASSERT_OK(client.send(hello));
  ASSERT_OK_AND_ASSIGN(const Buffer answer, client.recv(base::kServerHelloSize));
  EXPECT_EQ(answer[6], static_cast<std::byte>(base::Verdict::kWrongVersion));
  EXPECT_TRUE(client.is_closed_by_server());

  const auto other = base::listen_on(base::SocketAddress::parse("127.0.0.1", 0).value()).value();
  const auto address = base::local_address(other.get()).value();
  auto connected = connect(*rank1_, {.endpoint = {.host = address.host(), .port = address.port()}}, soon());
  Buffer from_the_future(base::kServerHelloSize);
  std::memcpy(from_the_future.data(), "LKSS\x63\0", 6);
  UniqueFd accepted;
  while (!accepted) accepted = UniqueFd(::accept(other.get(), nullptr, nullptr));
  ASSERT_OK(base::send_all(accepted.get(), from_the_future, soon(), "test"));
  const auto refused = await(std::move(connected));
  EXPECT_THAT(refused, StatusIs(Code::kInvalid, AllOf(HasSubstr("99"), HasSubstr("version 1"))));
  EXPECT_THAT(refused, FailureIs(Failure::kVersionMismatch));
}

TEST_F(TcpTransportTest, BothSidesHearThatTheirProtectionDiffers) {
  listen({.protection = Protection::kIntegrity});
  const auto rank0 = TcpTransport::create({.identity = member(0)}).value();
  const auto refused = await(connect(*rank0, {.endpoint = listener_->endpoint(), .rank = Rank(1)}, soon()));
  EXPECT_THAT(refused, StatusIs(Code::kInvalid, AllOf(HasSubstr("sealed"), HasSubstr("integrity"))));
  auto accepted = accept(*listener_, soon());
  EXPECT_EQ(accepted.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
}

// F15, behind the handshake: a peer with the secret is trusted for values, not for lengths.
TEST_F(TcpTransportTest, LengthsOfAMemberAreCheckedToo) {
  listen();
  for (const std::uint32_t length : {0U, 65538U, 0x7fffffffU, 0xffffffffU}) {
    RawClient client(listener_->endpoint(), member(0));
    const auto server = admit(client);
    Buffer got(1);
    auto received = recv(*server, got, soon());
    Buffer bytes;
    base::ByteWriter(bytes).integer(length);
    ASSERT_OK(client.send(bytes));
    const Status status = await(std::move(received));
    EXPECT_THAT(status, StatusIs(Code::kDisconnected, HasSubstr("rank 0")));
    EXPECT_THAT(status, FailureIs(Failure::kLimitExceeded));
    EXPECT_EQ(status.cause().sequence, 1U);
  }
}

TEST_F(TcpTransportTest, FinAndResetInTheMiddleOfARecordAreADeath) {
  listen();
  for (const auto ending : {RawClient::Ending::kFin, RawClient::Ending::kReset}) {
    RawClient client(listener_->endpoint(), member(0));
    const auto server = admit(client);
    const Buffer payload = pattern(100, 1);
    ASSERT_OK(client.send(client.record(payload)));
    const Buffer half = client.record(payload);
    ASSERT_OK(client.send(ByteView(half).first(half.size() / 2)));
    Buffer got(100);
    ASSERT_OK(await(recv(*server, got, soon())));
    EXPECT_EQ(got, payload);
    auto received = recv(*server, got, soon());
    client.end(ending);
    const Status status = await(std::move(received));
    EXPECT_THAT(status, StatusIs(Code::kDisconnected, HasSubstr("rank 0")));
    EXPECT_THAT(status, FailureIs(Failure::kPeerDied));
  }
}

TEST_F(TcpTransportTest, RecordsAfterTheGoodbyeAndSecondIntroductionsAreNotTaken) {
  listen();
  for (const auto kind : {transport::tcp::RecordKind::kGoodbye, transport::tcp::RecordKind::kIntroduction}) {
    RawClient client(listener_->endpoint(), member(0));
    const auto server = admit(client);
    Buffer bytes;
    const Buffer payload(kind == transport::tcp::RecordKind::kGoodbye ? 0 : transport::kIntroductionSize);
    client.writer().write(bytes, kind, payload);
    ASSERT_OK(client.send(bytes));
    ASSERT_OK(client.send(client.record(pattern(10, 1))));
    Buffer got(10);
    EXPECT_THAT(await(recv(*server, got, soon())), StatusIs(Code::kDisconnected));
  }
}

// F14.
TEST_F(TcpTransportTest, StrangersAreDroppedAndMembersGetIn) {
  listen();
  for (const std::string& words :
       {std::string("GET / HTTP/1.1\r\nHost: example\r\n\r\nand some more to fill a whole hello of 72 bytes"),
        std::string(72, '\xff'), std::string(100'000, 'x')}) {
    RawClient stranger(listener_->endpoint(), member(0));
    EXPECT_THAT(stranger.send(bytes_of(words)), ::testing::AnyOf(IsOk(), StatusIs(Code::kDisconnected)));
    EXPECT_TRUE(stranger.is_closed_by_server());
  }
  expect_a_member_gets_in();
}

TEST_F(TcpTransportTest, SilentStrangersDoNotKeepAMemberOut) {
  listen({.max_unproven = 8});
  std::vector<std::unique_ptr<RawClient>> silent;
  for (int i = 0; i < 40; ++i) {
    silent.push_back(std::make_unique<RawClient>(listener_->endpoint(), member(0)));
    // Some say a little.
    if (i % 2 == 0) {
      ASSERT_OK(silent.back()->send(ByteView(silent.back()->state().hello()).first(10)));
    }
  }
  expect_a_member_gets_in();
}

TEST_F(TcpTransportTest, AHandshakeHasItsTimeAndNoMore) {
  FakeClock clock;
  const auto rank1 = TcpTransport::create({.identity = member(1)}, clock).value();
  const auto listener = rank1->listen(kLoopback).value();
  RawClient silent(listener->endpoint(), member(0));
  RawClient half_way(listener->endpoint(), member(0));
  ASSERT_OK(half_way.send(half_way.state().hello()));
  ASSERT_OK(half_way.recv(base::kServerHelloSize));
  RawClient not_introduced(listener->endpoint(), member(0));
  ASSERT_OK(not_introduced.handshake());
  ASSERT_OK(not_introduced.recv(transport::tcp::kSealedIntroductionSize));  // now the server waits for its
  clock.advance(std::chrono::seconds(6));
  EXPECT_TRUE(silent.is_closed_by_server());
  EXPECT_TRUE(half_way.is_closed_by_server());
  EXPECT_TRUE(not_introduced.is_closed_by_server());
}

TEST_F(TcpTransportTest, AServerThatDoesNotAnswerIsATimeoutOfTheClient) {
  FakeClock clock;
  const auto rank0 = TcpTransport::create({.identity = member(0)}, clock).value();
  // The kernel takes the connection; nobody answers.
  const auto mute = base::listen_on(base::SocketAddress::parse("127.0.0.1", 0).value()).value();
  const auto address = base::local_address(mute.get()).value();
  const base::Endpoint endpoint{.host = address.host(), .port = address.port()};
  auto connected =
      connect(*rank0, {.endpoint = endpoint, .rank = Rank(1)}, clock.in(std::chrono::minutes(1)));
  auto impatient =
      connect(*rank0, {.endpoint = endpoint, .rank = Rank(1)}, clock.in(std::chrono::seconds(1)));
  ASSERT_EQ(connected.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  clock.advance(std::chrono::seconds(2));
  EXPECT_THAT(
      await(std::move(impatient)),
      StatusIs(Code::kTimeout, AllOf(HasSubstr("rank 0: connect to rank 1"), HasSubstr(endpoint.text()))));
  // What the other side may take is its caller's to say.
  clock.advance(std::chrono::seconds(57));
  ASSERT_EQ(connected.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  clock.advance(std::chrono::seconds(2));
  EXPECT_THAT(await(std::move(connected)), StatusIs(Code::kTimeout, HasSubstr("handshake")));
}

TEST_F(TcpTransportTest, ThereIsALimitOnConnectionsAndPlacesComeBack) {
  listen({.max_connections = 2});
  const auto rank0 = TcpTransport::create({.identity = member(0)}).value();
  const transport::Target target{.endpoint = listener_->endpoint()};
  auto first = await(connect(*rank0, target, soon()));
  auto second = await(connect(*rank0, target, soon()));
  ASSERT_OK(first);
  ASSERT_OK(second);
  EXPECT_THAT(await(connect(*rank0, target, soon())), FailureIs(Failure::kLimitExceeded));
  ASSERT_OK_AND_ASSIGN(auto accepted, await(accept(*listener_, soon())));
  Buffer got(1);
  auto received = recv(*accepted, got, soon());
  std::move(first).value().reset();
  EXPECT_THAT(await(std::move(received)), StatusIs(Code::kDisconnected));
  accepted.reset();
  EXPECT_OK(await(connect(*rank0, target, soon())));
}

TEST_F(TcpTransportTest, DestructionEndsAConnectThatIsUnderWay) {
  auto rank0 = TcpTransport::create({.identity = member(0)}).value();
  const auto mute = base::listen_on(base::SocketAddress::parse("127.0.0.1", 0).value()).value();
  const auto address = base::local_address(mute.get()).value();
  auto connected = connect(*rank0, {.endpoint = {.host = address.host(), .port = address.port()}}, soon());
  rank0.reset();
  ASSERT_EQ(connected.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  EXPECT_THAT(connected.get(), StatusIs(Code::kAborted));
}

TEST_F(TcpTransportTest, AnAddressThatOthersReachNeedsASecret) {
  const auto open = TcpTransport::create({.identity = identity_of(0)}).value();
  const auto refused = open->listen({.host = "0.0.0.0", .port = 0});
  EXPECT_THAT(refused, StatusIs(Code::kInvalid, HasSubstr("lockstep secret")));
  EXPECT_THAT(refused, FailureIs(Failure::kNoSecret));
  const auto insecure =
      TcpTransport::create({.identity = identity_of(0), .open_to_all = store::OpenToAll::kAllow}).value();
  EXPECT_OK(insecure->listen({.host = "0.0.0.0", .port = 0}));
  const auto secret = TcpTransport::create({.identity = member(0)}).value();
  EXPECT_OK(secret->listen({.host = "0.0.0.0", .port = 0}));
}

TEST_F(TcpTransportTest, NamesAreNotLookedUp) {
  const auto rank0 = TcpTransport::create({.identity = member(0)}).value();
  EXPECT_THAT(rank0->listen({.host = "localhost", .port = 0}), StatusIs(Code::kInvalid));
  EXPECT_THAT(await(connect(*rank0, {.endpoint = {.host = "localhost", .port = 1}}, soon())),
              StatusIs(Code::kInvalid));
}

}  // namespace
}  // namespace lockstep::testing
