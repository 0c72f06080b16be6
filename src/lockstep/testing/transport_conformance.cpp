// How connections are made, or refused.
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/testing/connection_conformance.h"
#include "lockstep/testing/sanitized.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::testing {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using transport::Connection;
using transport::Identity;
using transport::Listener;
using transport::Transport;

std::string transport_tests() { return "Transports"; }

TransportConformance::~TransportConformance() = default;

TEST_P(TransportConformance, NobodyListensThere) {
  connect_pair();
  const base::Endpoint gone = listener_->endpoint();
  listener_.reset();
  const auto refused = await(connect(*transport0_, {.endpoint = gone, .rank = Rank(1)}, soon()));
  EXPECT_THAT(refused, StatusIs(Code::kDisconnected,
                                AllOf(HasSubstr("rank 0"), HasSubstr("rank 1"), HasSubstr(gone.text()))));
  EXPECT_THAT(refused, FailureIs(Failure::kPeerUnreachable));
  EXPECT_EQ(refused.status().cause().op, "connect");
  // The connection that was made before goes on.
  Buffer got(4);
  ASSERT_OK(await(send(*client_, pattern(4, 1), soon())));
  EXPECT_OK(await(recv(*server_, got, soon())));
}

TEST_P(TransportConformance, WhoeverDoesNotBelongHereIsRefusedAndTheOthersStay) {
  connect_pair();
  const base::Endpoint endpoint = listener_->endpoint();
  const auto result_of = [&](const Identity& identity, Rank expected) {
    const auto transport = family_->make(identity, Clock::steady());
    return await(connect(*transport, {.endpoint = endpoint, .rank = expected}, soon())).status();
  };
  Identity other_job = identity_of(0);
  other_job.job_id = "another";
  EXPECT_THAT(result_of(other_job, Rank(1)), FailureIs(Failure::kRejected));
  Identity other_epoch = identity_of(0);
  other_epoch.epoch = 2;
  EXPECT_THAT(result_of(other_epoch, Rank(1)), FailureIs(Failure::kRejected));
  Identity other_secret = identity_of(0);
  other_secret.secret = Secret::generate();
  EXPECT_THAT(result_of(other_secret, Rank(1)), FailureIs(Failure::kRejected));
  const Status world = result_of(identity_of(0, WorldSize(3)), Rank(1));
  EXPECT_THAT(world, FailureIs(Failure::kWorldSizeMismatch));
  EXPECT_THAT(world.message(), AllOf(HasSubstr("world of 2"), HasSubstr("world of 3")));
  const Status rank = result_of(identity_of(0), Rank(0));
  EXPECT_THAT(rank, FailureIs(Failure::kRejected));
  EXPECT_THAT(rank.message(), AllOf(HasSubstr("it is rank 1"), HasSubstr("should be rank 0")));

  auto accepted = accept(*listener_, soon());
  ASSERT_OK_AND_ASSIGN(const auto again, await(connect(*transport0_, {.endpoint = endpoint}, soon())));
  // A client that found the wrong rank was let in before it left.
  auto peer = await(std::move(accepted));
  ASSERT_OK(peer);
}

TEST_P(TransportConformance, ManyConnectAtOnceAndAreAccepted) {
  transport1_ = family_->make(identity_of(1), Clock::steady());
  ASSERT_OK_AND_ASSIGN(listener_, transport1_->listen(family_->bind()));
  constexpr int kClients = 8;
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([this, i] {
      const auto transport = family_->make(identity_of(0), Clock::steady());
      auto connection = await(connect(*transport, {.endpoint = listener_->endpoint()}, soon()));
      ASSERT_OK(connection);
      const Buffer name(1, static_cast<std::byte>(i));
      ASSERT_OK(await(send(**connection, name, soon())));
      Buffer echo(1);
      ASSERT_OK(await(recv(**connection, echo, soon())));
      EXPECT_EQ(echo, name);
    });
  }
  for (int i = 0; i < kClients; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto connection, await(accept(*listener_, soon())));
    Buffer name(1);
    ASSERT_OK(await(recv(*connection, name, soon())));
    ASSERT_OK(await(send(*connection, name, soon())));
  }
  for (std::thread& client : clients) client.join();
}

TEST_P(TransportConformance, AcceptTimesOutAndTheListenerGoesOn) {
  FakeClock fake;
  const auto transport1 = family_->make(identity_of(1), fake);
  ASSERT_OK_AND_ASSIGN(const auto listener, transport1->listen(family_->bind()));
  auto accepted = accept(*listener, fake.in(std::chrono::seconds(3)));
  auto patient = accept(*listener, fake.in(std::chrono::hours(3)));
  ASSERT_EQ(accepted.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  fake.advance(std::chrono::seconds(4));
  EXPECT_THAT(await(std::move(accepted)),
              StatusIs(Code::kTimeout, AllOf(HasSubstr("rank 1"), HasSubstr(listener->endpoint().text()))));
  const auto transport0 = family_->make(identity_of(0), fake);
  EXPECT_OK(
      await(connect(*transport0, {.endpoint = listener->endpoint()}, fake.in(std::chrono::seconds(50)))));
  EXPECT_OK(await(std::move(patient)));
}

TEST_P(TransportConformance, CloseEndsAcceptAndLetsGoOfThePlace) {
  transport1_ = family_->make(identity_of(1), Clock::steady());
  ASSERT_OK_AND_ASSIGN(listener_, transport1_->listen(family_->bind()));
  const base::Endpoint endpoint = listener_->endpoint();
  EXPECT_THAT(transport1_->listen(endpoint), FailureIs(Failure::kPortTaken));
  auto first = accept(*listener_, soon());
  auto second = accept(*listener_, soon());
  listener_->close();
  EXPECT_THAT(await(std::move(first)), StatusIs(Code::kAborted));
  EXPECT_THAT(await(std::move(second)), StatusIs(Code::kAborted));
  EXPECT_THAT(await(accept(*listener_, soon())), StatusIs(Code::kAborted, HasSubstr("rank 1")));
  listener_.reset();
  ASSERT_OK_AND_ASSIGN(listener_, transport1_->listen(endpoint));
  EXPECT_EQ(listener_->endpoint(), endpoint);
}

TEST_P(TransportConformance, ConnectionsThatNobodyAcceptedEndWithTheListener) {
  transport0_ = family_->make(identity_of(0), Clock::steady());
  transport1_ = family_->make(identity_of(1), Clock::steady());
  ASSERT_OK_AND_ASSIGN(listener_, transport1_->listen(family_->bind()));
  ASSERT_OK_AND_ASSIGN(client_, await(connect(*transport0_, {.endpoint = listener_->endpoint()}, soon())));
  Buffer got(1);
  auto received = recv(*client_, got, soon());
  listener_.reset();
  EXPECT_THAT(await(std::move(received)), StatusIs(Code::kDisconnected));
}

namespace {

// Everything that a forked child may do with a pair: each call is refused inside the call, and nothing waits.
bool refuses_all_in_child(Transport& transport, Listener& listener, Connection& connection,
                          const base::Endpoint& bind, const Deadline& deadline) {
  std::vector<Failure> failures;
  const auto note = [&](const Status& status) { failures.push_back(status.failure()); };
  const auto note_result = [&](const auto& result) { note(result.status()); };
  connection.send({}, deadline, note);
  connection.recv({}, deadline, note);
  transport.connect({.endpoint = listener.endpoint()}, deadline, note_result);
  listener.accept(deadline, note_result);
  note_result(transport.listen(bind));
  connection.close();
  listener.close();
  return failures == std::vector<Failure>(5, Failure::kForked);
}

}  // namespace

// Nothing of the loop is in a forked child, so that is the one place where the callback runs inside the call.
// The loops are at work while the process forks, so that a child which takes a lock of theirs soon finds it
// held.
TEST_P(TransportConformance, AForkedChildIsToldAndItsParentGoesOn) {
  connect_pair();
  const Buffer bytes = pattern(100, 1);
  for (int i = 0; i < (kSanitized ? 4 : 20); ++i) {
    Buffer got(bytes.size());
    auto received = recv(*server_, got, soon());
    auto sent = send(*client_, bytes, soon());
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);  // a child that waits shall fail the test, not outlive it
      const bool refused = refuses_all_in_child(*transport0_, *listener_, *client_, family_->bind(), soon());
      client_.reset();
      server_.reset();
      listener_.reset();
      transport0_.reset();
      transport1_.reset();
      _exit(refused ? 0 : 1);
    }
    int result = -1;
    ASSERT_EQ(waitpid(child, &result, 0), child);
    ASSERT_TRUE(WIFEXITED(result)) << "ended by signal " << WTERMSIG(result);
    ASSERT_EQ(WEXITSTATUS(result), 0);
    ASSERT_OK(await(std::move(sent)));
    ASSERT_OK(await(std::move(received)));
    ASSERT_EQ(got, bytes);
  }
}

}  // namespace lockstep::testing
