#include "lockstep/base/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "lockstep/base/text.h"
#include "lockstep/base/wire_table.h"

namespace lockstep::base {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const HandshakeIdentity kRankTwo{.role = Role::kControl, .job_id = "job-1", .epoch = 7, .rank = 2};

// A server of one job that judges role, job and epoch, as the store's does.
ServerHandshake::Decide server_of(const Secret& secret) {
  return [secret](const ClientClaim& claim) -> ServerHandshake::Decision {
    if (claim.role != kRankTwo.role) return {.verdict = Verdict::kWrongRole, .secret = {}};
    if (claim.job != job_hash(kRankTwo.job_id)) return {.verdict = Verdict::kWrongJob, .secret = {}};
    if (claim.epoch != kRankTwo.epoch) return {.verdict = Verdict::kWrongEpoch, .secret = {}};
    return {.verdict = Verdict::kAccepted, .secret = secret};
  };
}

// What came of one exchange, and every message of it.
struct Exchange {
  std::array<std::byte, kClientHelloSize> client_hello{};
  std::array<std::byte, kServerHelloSize> server_hello{};
  std::array<std::byte, kProofSize> proof{};
  std::array<std::byte, kVerdictSize> verdict{};
  Status client;
  std::optional<SessionKeys> client_keys;
  Verdict server = Verdict::kAccepted;
  std::string server_text;
  std::optional<SessionKeys> server_keys;
};

enum class Message { kClientHello, kServerHello, kProof, kVerdict };
// Changes a message on its way.
using Meddle = std::function<void(Message, ByteSpan)>;

Exchange exchange(
    const HandshakeIdentity& identity, const Secret& client_secret, ServerHandshake::Decide decide,
    const Meddle& meddle = [](Message, ByteSpan) {}, Verdict if_proven = Verdict::kAccepted) {
  Exchange out;
  ClientHandshake client(identity, client_secret);
  ServerHandshake server(std::move(decide));
  const auto converse = [&]() -> Status {
    out.client_hello = client.hello();
    meddle(Message::kClientHello, out.client_hello);
    out.server_hello = server.on_client_hello(out.client_hello);
    meddle(Message::kServerHello, out.server_hello);
    LOCKSTEP_ASSIGN(out.proof, client.on_server_hello(out.server_hello));
    meddle(Message::kProof, out.proof);
    out.verdict = server.on_proof(out.proof, if_proven);
    meddle(Message::kVerdict, out.verdict);
    LOCKSTEP_TRY(client.on_verdict(out.verdict));
    out.client_keys = client.keys();
    return {};
  };
  out.client = converse();
  out.server = server.verdict();
  out.server_text = server.refusal_text();
  if (server.accepted()) out.server_keys = server.keys();
  return out;
}

std::string message_of(const Exchange& result) { return std::string(result.client.message()); }

TEST(Handshake, BothSidesDeriveTheSameKeys) {
  const Secret secret = Secret::generate();
  const Exchange result = exchange(kRankTwo, secret, server_of(secret));
  ASSERT_TRUE(result.client.ok()) << result.client.text();
  ASSERT_TRUE(result.client_keys && result.server_keys);
  EXPECT_EQ(result.client_keys->client_to_server, result.server_keys->client_to_server);
  EXPECT_EQ(result.client_keys->server_to_client, result.server_keys->server_to_client);
  EXPECT_NE(result.client_keys->client_to_server, result.client_keys->server_to_client);
}

TEST(Handshake, EachConnectionHasItsOwnKeys) {
  const Secret secret = Secret::generate();
  const Exchange a = exchange(kRankTwo, secret, server_of(secret));
  const Exchange b = exchange(kRankTwo, secret, server_of(secret));
  EXPECT_NE(a.client_keys->client_to_server, b.client_keys->client_to_server);
  EXPECT_NE(a.client_keys->server_to_client, b.client_keys->server_to_client);
}

TEST(Handshake, ServerLearnsTheClaim) {
  ClientClaim seen;
  const Secret secret = Secret::generate();
  const Exchange result = exchange(kRankTwo, secret, [&](const ClientClaim& claim) {
    seen = claim;
    return ServerHandshake::Decision{.verdict = Verdict::kAccepted, .secret = secret};
  });
  ASSERT_TRUE(result.client.ok());
  EXPECT_EQ(seen.version, kWireVersion);
  EXPECT_EQ(seen.role, Role::kControl);
  EXPECT_EQ(seen.job, job_hash("job-1"));
  EXPECT_EQ(seen.epoch, 7U);
  EXPECT_EQ(seen.rank, 2U);
  EXPECT_FALSE(seen.insecure);
}

TEST(Handshake, ClientHelloHasTheLayoutOfTheGrammar) {
  const ClientHandshake client({.role = Role::kData, .job_id = "", .epoch = 0x0102, .rank = kNoRank},
                               Secret::insecure());
  const ByteView hello = client.hello();
  Buffer table;
  ByteWriter(table).integer(kWireTable);
  EXPECT_EQ(hex(hello.first(8)),
            "4c4b5343"
            "0100"
            "03"
            "01");
  EXPECT_EQ(hex(hello.subspan(8, 8)), cat("ffffffff", hex(table)));
  EXPECT_EQ(hex(hello.subspan(16, 16)), hex(job_hash("")));
  EXPECT_EQ(hex(hello.subspan(32, 8)), "0201000000000000");
}

TEST(Handshake, AnotherVersionIsNamedOnBothSides) {
  const Secret secret = Secret::generate();
  const Exchange newer_client =
      exchange(kRankTwo, secret, server_of(secret), [](Message message, ByteSpan bytes) {
        if (message == Message::kClientHello) bytes[4] = std::byte{9};
      });
  EXPECT_EQ(newer_client.server, Verdict::kWrongVersion);
  EXPECT_THAT(newer_client.server_text, AllOf(HasSubstr("version 9"), HasSubstr("version 1")));
  EXPECT_EQ(newer_client.client.failure(), Failure::kVersionMismatch);

  const Exchange newer_server =
      exchange(kRankTwo, secret, server_of(secret), [](Message message, ByteSpan bytes) {
        if (message == Message::kServerHello) bytes[4] = std::byte{9};
      });
  EXPECT_EQ(newer_server.client.failure(), Failure::kVersionMismatch);
  EXPECT_THAT(message_of(newer_server), AllOf(HasSubstr("version 9"), HasSubstr("version 1")));
}

// F12: a build whose types, operations or limits have other numbers.
TEST(Handshake, AnotherTableOfTypesAndLimitsIsNamedOnBothSides) {
  const Secret secret = Secret::generate();
  const Exchange result = exchange(kRankTwo, secret, server_of(secret), [](Message message, ByteSpan bytes) {
    if (message == Message::kClientHello) std::ranges::copy(bytes_of("\x44\x33\x22\x11"), bytes.begin() + 12);
  });
  EXPECT_EQ(result.server, Verdict::kWrongTable);
  EXPECT_THAT(result.server_text, HasSubstr("the client was built with table 11223344"));
  EXPECT_EQ(result.client.failure(), Failure::kVersionMismatch);
  EXPECT_EQ(result.client.code(), Code::kInvalid);
  char ours[9];
  std::snprintf(ours, sizeof(ours), "%08x", kWireTable);
  EXPECT_THAT(result.server_text, HasSubstr(ours));
  EXPECT_THAT(message_of(result),
              AllOf(HasSubstr(cat("the server was built with table ", ours)), HasSubstr("the same sources")));
}

TEST(Handshake, EachRefusalReachesBothSidesWithItsReason) {
  const Secret secret = Secret::generate();
  struct Case {
    HandshakeIdentity identity;
    Verdict verdict;
    const char* text;
  };
  HandshakeIdentity role = kRankTwo, job = kRankTwo, epoch = kRankTwo;
  role.role = Role::kHeap;
  job.job_id = "job-2";
  epoch.epoch = 6;
  for (const Case& c :
       {Case{role, Verdict::kWrongRole, "not served here"}, Case{job, Verdict::kWrongJob, "no such job"},
        Case{epoch, Verdict::kWrongEpoch, "earlier run"}}) {
    const Exchange result = exchange(c.identity, secret, server_of(secret));
    EXPECT_EQ(result.server, c.verdict);
    EXPECT_THAT(result.server_text, AllOf(HasSubstr(c.text), HasSubstr("rank 2")));
    EXPECT_EQ(result.client.code(), Code::kInvalid);
    EXPECT_EQ(result.client.failure(), Failure::kRejected);
    EXPECT_EQ(result.client.cause().rank, Rank{2});
    EXPECT_THAT(message_of(result),
                AllOf(HasSubstr(c.text), HasSubstr(c.identity.job_id), HasSubstr("rank 2")));
    EXPECT_FALSE(result.client_keys || result.server_keys);
  }
}

TEST(Handshake, DuplicateRankAndTooManyKeepTheirFailure) {
  const Secret secret = Secret::generate();
  const Exchange duplicate = exchange(
      kRankTwo, secret, server_of(secret), [](Message, ByteSpan) {}, Verdict::kDuplicateRank);
  EXPECT_EQ(duplicate.server, Verdict::kDuplicateRank);
  EXPECT_EQ(duplicate.client.failure(), Failure::kDuplicateRank);
  EXPECT_FALSE(duplicate.client_keys || duplicate.server_keys);

  const Exchange too_many = exchange(kRankTwo, secret, [](const ClientClaim&) {
    return ServerHandshake::Decision{.verdict = Verdict::kTooMany, .secret = {}};
  });
  EXPECT_EQ(too_many.client.failure(), Failure::kLimitExceeded);
  EXPECT_EQ(too_many.client.code(), Code::kDisconnected);
}

TEST(Handshake, ServerWithAnotherSecretIsFoundOutByTheClient) {
  const Exchange result = exchange(kRankTwo, Secret::generate(), server_of(Secret::generate()));
  EXPECT_EQ(result.client.failure(), Failure::kRejected);
  EXPECT_THAT(message_of(result), HasSubstr("does not hold the secret of job \"job-1\""));
  EXPECT_FALSE(result.client_keys || result.server_keys);
  EXPECT_THAT(result.server_text, HasSubstr("may hold another one"));
}

TEST(Handshake, ClientWithAnotherSecretIsFoundOutByTheServer) {
  ServerHandshake server(server_of(Secret::generate()));
  server.on_client_hello(ClientHandshake(kRankTwo, Secret::generate()).hello());
  ASSERT_EQ(server.verdict(), Verdict::kAccepted);
  EXPECT_FALSE(server.accepted());
  const auto verdict = server.on_proof(std::array<std::byte, kProofSize>{});
  EXPECT_EQ(verdict[0], static_cast<std::byte>(Verdict::kWrongSecret));
  EXPECT_FALSE(server.accepted());
  EXPECT_THAT(server.refusal_text(), HasSubstr("secret is not that of the job"));
}

TEST(Handshake, InsecureMeetsOnlyInsecure) {
  const Exchange both = exchange(kRankTwo, Secret::insecure(), server_of(Secret::insecure()));
  EXPECT_TRUE(both.client.ok()) << both.client.text();

  const Exchange client_only = exchange(kRankTwo, Secret::insecure(), server_of(Secret::generate()));
  EXPECT_EQ(client_only.server, Verdict::kWrongSecret);
  EXPECT_THAT(message_of(client_only), HasSubstr("the server has a job secret and this side has none"));
  EXPECT_THAT(client_only.server_text, HasSubstr("has no secret and this side has one"));

  const Exchange server_only = exchange(kRankTwo, Secret::generate(), server_of(Secret::insecure()));
  EXPECT_EQ(server_only.server, Verdict::kWrongSecret);
  EXPECT_THAT(message_of(server_only), HasSubstr("this side has a job secret and the server is insecure"));
  EXPECT_THAT(server_only.server_text, HasSubstr("has a secret and this side has none"));
}

TEST(Handshake, ReplayedClientMessagesFailAgainstANewNonce) {
  const Secret secret = Secret::generate();
  const Exchange recorded = exchange(kRankTwo, secret, server_of(secret));
  ASSERT_TRUE(recorded.client.ok());
  ServerHandshake server(server_of(secret));
  EXPECT_NE(server.on_client_hello(recorded.client_hello), recorded.server_hello);
  EXPECT_EQ(server.on_proof(recorded.proof)[0], static_cast<std::byte>(Verdict::kWrongSecret));
  EXPECT_FALSE(server.accepted());
}

TEST(Handshake, ReplayedServerMessagesFailAgainstANewClient) {
  const Secret secret = Secret::generate();
  const Exchange recorded = exchange(kRankTwo, secret, server_of(secret));
  ClientHandshake client(kRankTwo, secret);
  EXPECT_FALSE(client.on_server_hello(recorded.server_hello).ok());
  EXPECT_FALSE(client.on_verdict(recorded.verdict).ok());
}

TEST(Handshake, ReflectedMessagesAreRefused) {
  const Secret secret = Secret::generate();
  ClientHandshake client(kRankTwo, secret);
  const auto own = client.on_server_hello(client.hello());
  EXPECT_THAT(std::string(own.status().message()), HasSubstr("does not speak Lockstep's protocol"));

  // The server's own proof sent back as the client's.
  ServerHandshake server(server_of(secret));
  const auto hello = server.on_client_hello(client.hello());
  EXPECT_EQ(server.on_proof(std::span(hello).last<kProofSize>())[0],
            static_cast<std::byte>(Verdict::kWrongSecret));
}

TEST(Handshake, ProofsAreBoundToTheWholeHello) {
  // A server that passes hello and proof on to another one, but under another rank.
  const Secret secret = Secret::generate();
  const Exchange result = exchange(kRankTwo, secret, server_of(secret), [](Message message, ByteSpan bytes) {
    if (message == Message::kClientHello) bytes[8] = std::byte{3};
  });
  EXPECT_FALSE(result.client.ok());
  EXPECT_FALSE(result.server_keys);
}

TEST(Handshake, EverySingleBitFlipIsRefusedOnOneSideAtLeast) {
  const Secret secret = Secret::generate();
  const std::pair<Message, std::size_t> kMessages[] = {{Message::kClientHello, kClientHelloSize},
                                                       {Message::kServerHello, kServerHelloSize},
                                                       {Message::kProof, kProofSize},
                                                       {Message::kVerdict, kVerdictSize}};
  for (const auto& [which, size] : kMessages) {
    for (std::size_t bit = 0; bit < 8 * size; ++bit) {
      const Exchange result =
          exchange(kRankTwo, secret, server_of(secret), [&, target = which](Message message, ByteSpan bytes) {
            if (message == target) bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
          });
      EXPECT_FALSE(result.client.ok()) << "message " << static_cast<int>(which) << " bit " << bit;
      EXPECT_FALSE(result.client_keys) << "message " << static_cast<int>(which) << " bit " << bit;
    }
  }
}

TEST(Handshake, GarbageIsNotLockstepAndNeverReachesTheJudge) {
  for (const std::string text : {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "", "LKSS", "\xff\xff\xff\xff"}) {
    std::array<std::byte, kClientHelloSize> message{};
    std::ranges::copy(bytes_of(text), message.begin());
    ServerHandshake server([](const ClientClaim&) -> ServerHandshake::Decision {
      ADD_FAILURE() << "garbage was judged";
      return {.verdict = Verdict::kTooMany, .secret = {}};
    });
    const auto answer = server.on_client_hello(message);
    EXPECT_EQ(server.verdict(), Verdict::kNotLockstep);
    EXPECT_FALSE(server.accepted());
    EXPECT_EQ(text_of(ByteView(answer).first(4)), "LKSS");
    EXPECT_EQ(Buffer(answer.begin() + 8, answer.end()), Buffer(kServerHelloSize - 8))
        << "nothing is proven to strangers";
    // Whoever goes on all the same hears the same.
    EXPECT_EQ(server.on_proof(std::array<std::byte, kProofSize>{})[0],
              static_cast<std::byte>(Verdict::kNotLockstep));
  }
}

TEST(Handshake, UnknownRolesAndReservedBitsAreRefused) {
  const Secret secret = Secret::generate();
  struct Case {
    std::size_t offset;
    std::uint8_t value;
    Verdict verdict;
  };
  for (const Case& c : {Case{6, 0, Verdict::kWrongRole}, Case{6, 5, Verdict::kWrongRole},
                        Case{7, 2, Verdict::kNotLockstep}, Case{12, 1, Verdict::kWrongTable}}) {
    const Exchange result =
        exchange(kRankTwo, secret, server_of(secret), [&](Message message, ByteSpan bytes) {
          if (message == Message::kClientHello) bytes[c.offset] = static_cast<std::byte>(c.value);
        });
    EXPECT_EQ(result.server, c.verdict);
  }
}

TEST(Handshake, ServerKeepsLessThan256BytesOfAStranger) {
  EXPECT_LE(sizeof(ClientClaim) + kClientHelloSize + kServerHelloSize, 256U);
}

TEST(Handshake, EveryVerdictHasAText) {
  for (std::uint8_t i = 0; i <= static_cast<std::uint8_t>(Verdict::kTooMany); ++i)
    EXPECT_NE(verdict_text(static_cast<Verdict>(i)), verdict_text(static_cast<Verdict>(200))) << int{i};
}

}  // namespace
}  // namespace lockstep::base
