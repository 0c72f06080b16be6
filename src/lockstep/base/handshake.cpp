#include "lockstep/base/handshake.h"

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/base/wire_table.h"

namespace lockstep::base {
namespace {

// Different in the two directions, so that a hello that is sent back to its author is not taken for an
// answer.
constexpr std::string_view kClientMagic = "LKSC";
constexpr std::string_view kServerMagic = "LKSS";
constexpr std::uint8_t kFlagInsecure = 1;
constexpr std::size_t kHelloNonceSize = 32;
constexpr std::size_t kServerHelloHead = kServerHelloSize - kProofSize;  // what the server's proof covers
constexpr std::size_t kVerdictTagSize = kVerdictSize - 1;

constexpr std::string_view kServerProofLabel = "lockstep 1 server proof";
constexpr std::string_view kClientProofLabel = "lockstep 1 client proof";
constexpr std::string_view kVerdictLabel = "lockstep 1 accepted";
constexpr std::string_view kClientKeyLabel = "lockstep 1 key client to server";
constexpr std::string_view kServerKeyLabel = "lockstep 1 key server to client";

constexpr std::size_t kMaxTranscript = 256;

// HMAC-SHA256(secret, label | 0 | parts). The zero ends the label; the parts have fixed sizes.
Digest proof_of(const Secret& secret, std::string_view label, std::initializer_list<ByteView> parts) {
  Buffer transcript;
  transcript.reserve(kMaxTranscript);
  ByteWriter writer(transcript);
  writer.raw(bytes_of(label));
  writer.integer(std::uint8_t{0});
  for (const ByteView part : parts) writer.raw(part);
  return hmac_sha256(secret.bytes(), transcript);
}

SealKey key_of(const Secret& secret, std::string_view label, ByteView client_hello, ByteView server_hello) {
  Buffer salt;
  salt.reserve(client_hello.size() + server_hello.size());
  ByteWriter writer(salt);
  writer.raw(client_hello);
  writer.raw(server_hello);
  SealKey key;
  hkdf_sha256(secret.bytes(), salt, label, key);
  return key;
}

SessionKeys keys_of(const Secret& secret, ByteView client_hello, ByteView server_hello) {
  return {.client_to_server = key_of(secret, kClientKeyLabel, client_hello, server_hello),
          .server_to_client = key_of(secret, kServerKeyLabel, client_hello, server_hello)};
}

std::uint8_t flags_of(const Secret& secret) { return secret.is_insecure() ? kFlagInsecure : 0; }

Buffer random_nonce() {
  Buffer nonce(kHelloNonceSize);
  random_bytes(nonce);
  return nonce;
}

template <std::size_t kSize>
std::array<std::byte, kSize> message_of(const Buffer& bytes) {
  LOCKSTEP_CHECK(bytes.size() == kSize, "a handshake message has its fixed size");
  std::array<std::byte, kSize> message;
  std::ranges::copy(bytes, message.begin());
  return message;
}

bool starts_with(ByteView message, std::string_view magic) {
  return text_of(message.first(magic.size())) == magic;
}

std::string versions_text(std::string_view other, std::uint16_t version) {
  return cat(other, " speaks wire version ", version, " and this side speaks version ", kWireVersion,
             "; use the same release of Lockstep on both sides");
}

std::string table_text(std::uint32_t table) {
  Buffer bytes;
  ByteWriter(bytes).integer(table);
  std::ranges::reverse(bytes);
  return hex(bytes);
}

std::string tables_text(std::string_view other, std::uint32_t table) {
  return cat(other, " was built with table ", table_text(table),
             " of types and limits and this side with table ", table_text(kWireTable),
             ", though both speak wire version ", kWireVersion, "; build both sides from the same sources");
}

std::string rank_text(std::uint32_t rank) { return rank == kNoRank ? "no rank" : cat("rank ", rank); }

std::string_view role_text(Role role) {
  switch (role) {
    case Role::kStore:
      return "store";
    case Role::kControl:
      return "control";
    case Role::kData:
      return "data";
    case Role::kHeap:
      return "heap";
  }
  return "unknown";
}

Failure failure_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kWrongVersion:
    case Verdict::kWrongTable:
      return Failure::kVersionMismatch;
    case Verdict::kDuplicateRank:
      return Failure::kDuplicateRank;
    case Verdict::kTooMany:
      return Failure::kLimitExceeded;
    default:
      return Failure::kRejected;
  }
}

}  // namespace

std::string_view verdict_text(Verdict verdict) {
  switch (verdict) {
    case Verdict::kAccepted:
      return "accepted";
    case Verdict::kNotLockstep:
      return "what arrived is not Lockstep's handshake";
    case Verdict::kWrongVersion:
      return "the wire versions differ";
    case Verdict::kWrongRole:
      return "this kind of connection is not served here";
    case Verdict::kWrongJob:
      return "there is no such job here";
    case Verdict::kWrongEpoch:
      return "the epoch is not that of the job, so the client belongs to an earlier run";
    case Verdict::kWrongSecret:
      return "the secret is not that of the job";
    case Verdict::kDuplicateRank:
      return "this rank is here already";
    case Verdict::kTooMany:
      return "there are too many connections";
    case Verdict::kWrongTable:
      return "the tables of types and limits differ";
  }
  return "a reason that this version does not know";
}

JobHash job_hash(std::string_view job_id) {
  const Digest digest = sha256(bytes_of(cat("lockstep job ", job_id)));
  JobHash hash;
  std::copy_n(digest.begin(), hash.size(), hash.begin());
  return hash;
}

ClientHandshake::ClientHandshake(HandshakeIdentity identity, Secret secret)
    : identity_(std::move(identity)), secret_(std::move(secret)) {
  Buffer bytes;
  bytes.reserve(kClientHelloSize);
  ByteWriter writer(bytes);
  writer.raw(bytes_of(kClientMagic));
  writer.integer(kWireVersion);
  writer.integer(static_cast<std::uint8_t>(identity_.role));
  writer.integer(flags_of(secret_));
  writer.integer(identity_.rank);
  writer.integer(kWireTable);
  writer.raw(job_hash(identity_.job_id));
  writer.integer(identity_.epoch);
  writer.raw(random_nonce());
  hello_ = message_of<kClientHelloSize>(bytes);
}

Cause ClientHandshake::cause(Failure failure) const {
  Cause cause{.failure = failure};
  if (identity_.rank != kNoRank) cause.rank = Rank{static_cast<int>(identity_.rank)};
  return cause;
}

// A refusal that the server has spelled out.
Status ClientHandshake::refused(Verdict verdict) const {
  // A server without room may have some later; the rest stays wrong until somebody mends it.
  const Code code = verdict == Verdict::kTooMany ? Code::kDisconnected : Code::kInvalid;
  return {
      code,
      cat("the server refused the ", role_text(identity_.role), " connection of ", rank_text(identity_.rank),
          " of job ", quoted(identity_.job_id), ", epoch ", identity_.epoch, ": ", verdict_text(verdict)),
      cause(failure_of(verdict))};
}

Result<std::array<std::byte, kProofSize>> ClientHandshake::on_server_hello(
    std::span<const std::byte, kServerHelloSize> message) {
  ByteReader reader(message);
  reader.take(kServerMagic.size());
  const auto version = reader.integer<std::uint16_t>();
  const auto verdict = static_cast<Verdict>(reader.integer<std::uint8_t>());
  const auto flags = reader.integer<std::uint8_t>();
  if (!starts_with(message, kServerMagic)) {
    return Status::invalid(
        "the server does not speak Lockstep's protocol; is this the right address and port?",
        cause(Failure::kRejected));
  }
  if (version != kWireVersion)
    return Status::invalid(versions_text("the server", version), cause(Failure::kVersionMismatch));
  if (verdict == Verdict::kWrongTable) {
    return Status::invalid(tables_text("the server", reader.integer<std::uint32_t>()),
                           cause(Failure::kVersionMismatch));
  }
  if (verdict == Verdict::kWrongSecret && flags != flags_of(secret_)) {
    return Status::invalid(
        secret_.is_insecure()
            ? "the server has a job secret and this side has none: pass the secret on, or "
              "say insecure on both sides"
            : "this side has a job secret and the server is insecure: give it the secret, or say "
              "insecure on both sides",
        cause(Failure::kRejected));
  }
  if (verdict != Verdict::kAccepted) return refused(verdict);
  const Digest expected = proof_of(secret_, kServerProofLabel, {hello_, message.first(kServerHelloHead)});
  if (flags != flags_of(secret_) || !equal_in_constant_time(expected, message.last(kProofSize))) {
    return Status::invalid(cat("the server does not hold the secret of job ", quoted(identity_.job_id),
                               ": it belongs to another job, or one of the two secrets is wrong"),
                           cause(Failure::kRejected));
  }
  std::ranges::copy(message, server_hello_.begin());
  proof_ = proof_of(secret_, kClientProofLabel, {hello_, server_hello_});
  return proof_;
}

Status ClientHandshake::on_verdict(std::span<const std::byte, kVerdictSize> message) {
  const auto verdict = static_cast<Verdict>(message.front());
  if (verdict != Verdict::kAccepted) return refused(verdict);
  const Digest expected = proof_of(secret_, kVerdictLabel, {hello_, server_hello_, proof_});
  if (!equal_in_constant_time(ByteView(expected).first(kVerdictTagSize), message.last(kVerdictTagSize))) {
    return Status::invalid(
        "the server's verdict was changed on the way: somebody else writes to this connection",
        cause(Failure::kRejected));
  }
  accepted_ = true;
  return {};
}

SessionKeys ClientHandshake::keys() const {
  LOCKSTEP_CHECK(accepted_, "session keys are for clients that were accepted");
  return keys_of(secret_, hello_, server_hello_);
}

// What speaks against the hello, in the order of the grammar; fills claim_ and secret_.
Verdict ServerHandshake::judge(std::span<const std::byte, kClientHelloSize> message) {
  ByteReader reader(message);
  reader.take(kClientMagic.size());
  claim_.version = reader.integer<std::uint16_t>();
  const auto role = reader.integer<std::uint8_t>();
  const auto flags = reader.integer<std::uint8_t>();
  claim_.insecure = (flags & kFlagInsecure) != 0;
  claim_.rank = reader.integer<std::uint32_t>();
  claim_.table = reader.integer<std::uint32_t>();
  std::ranges::copy(reader.take(claim_.job.size()), claim_.job.begin());
  claim_.epoch = reader.integer<std::uint64_t>();

  if (!starts_with(message, kClientMagic)) return Verdict::kNotLockstep;
  if (claim_.version != kWireVersion) return Verdict::kWrongVersion;
  if ((flags & ~kFlagInsecure) != 0) return Verdict::kNotLockstep;
  if (claim_.table != kWireTable) return Verdict::kWrongTable;
  if (role < static_cast<std::uint8_t>(Role::kStore) || role > static_cast<std::uint8_t>(Role::kHeap))
    return Verdict::kWrongRole;
  claim_.role = static_cast<Role>(role);
  Decision decision = decide_(claim_);
  if (decision.verdict != Verdict::kAccepted) return decision.verdict;
  LOCKSTEP_CHECK(decision.secret.has_value(), "a claim is accepted together with its job's secret");
  secret_ = std::move(decision.secret);
  return secret_->is_insecure() == claim_.insecure ? Verdict::kAccepted : Verdict::kWrongSecret;
}

std::array<std::byte, kServerHelloSize> ServerHandshake::on_client_hello(
    std::span<const std::byte, kClientHelloSize> message) {
  LOCKSTEP_CHECK(!secret_ && verdict_ == Verdict::kAccepted, "a ServerHandshake takes one hello");
  std::ranges::copy(message, client_hello_.begin());
  verdict_ = judge(message);
  Buffer bytes;
  bytes.reserve(kServerHelloSize);
  ByteWriter writer(bytes);
  writer.raw(bytes_of(kServerMagic));
  writer.integer(kWireVersion);
  writer.integer(static_cast<std::uint8_t>(verdict_));
  writer.integer(secret_ ? flags_of(*secret_) : std::uint8_t{0});
  if (verdict_ == Verdict::kAccepted) {
    writer.raw(random_nonce());
    writer.raw(proof_of(*secret_, kServerProofLabel, {client_hello_, bytes}));
  } else {
    if (verdict_ == Verdict::kWrongTable) writer.integer(kWireTable);
    bytes.resize(kServerHelloSize);
  }
  server_hello_ = message_of<kServerHelloSize>(bytes);
  return server_hello_;
}

std::array<std::byte, kVerdictSize> ServerHandshake::on_proof(std::span<const std::byte, kProofSize> message,
                                                              Verdict if_proven) {
  LOCKSTEP_CHECK(!accepted_ && (secret_ || verdict_ != Verdict::kAccepted),
                 "a proof comes once, after a hello");
  std::array<std::byte, kVerdictSize> answer{};
  if (verdict_ == Verdict::kAccepted) {
    const Digest expected = proof_of(*secret_, kClientProofLabel, {client_hello_, server_hello_});
    verdict_ = equal_in_constant_time(expected, message) ? if_proven : Verdict::kWrongSecret;
    accepted_ = verdict_ == Verdict::kAccepted;
  }
  answer[0] = static_cast<std::byte>(verdict_);
  if (accepted_) {
    const Digest tag = proof_of(*secret_, kVerdictLabel, {client_hello_, server_hello_, message});
    std::copy_n(tag.begin(), kVerdictTagSize, answer.begin() + 1);
  }
  return answer;
}

std::string ServerHandshake::refusal_text() const {
  const std::string who = cat("the ", role_text(claim_.role), " client that says it is ",
                              rank_text(claim_.rank), " of epoch ", claim_.epoch);
  switch (verdict_) {
    case Verdict::kAccepted:
      return cat(who, " went away before it proved that it holds the secret; it may hold another one");
    case Verdict::kNotLockstep:
      return std::string(verdict_text(verdict_));
    case Verdict::kWrongVersion:
      return versions_text("the client", claim_.version);
    case Verdict::kWrongTable:
      return tables_text("the client", claim_.table);
    case Verdict::kWrongSecret:
      if (secret_ && secret_->is_insecure() != claim_.insecure)
        return cat(who, claim_.insecure ? " has no secret and this side has one"
                                        : " has a secret and this side has none");
      return cat(who, ": ", verdict_text(verdict_));
    default:
      return cat(who, ": ", verdict_text(verdict_));
  }
}

SessionKeys ServerHandshake::keys() const {
  LOCKSTEP_CHECK(accepted_, "session keys are for clients that were accepted");
  return keys_of(*secret_, client_hello_, server_hello_);
}

}  // namespace lockstep::base
