// The mutual handshake that opens every connection, as a pure state machine over bytes: it does no I/O, so
// store, transport and tests share it. Grammar: docs/wire/handshake.md.
//
//   client                                server
//   hello(magic, version, table, role, job, epoch, rank, nonce)  ->
//                                         <-  hello(magic, version, verdict, nonce, proof)
//   proof                                 ->
//                                         <-  verdict
//
// A proof is HMAC-SHA256(secret, label of the direction | both hellos). Every message has a fixed size and
// the server keeps less than 256 bytes before the client's proof is right. Keys come from HKDF over the
// secret and both hellos (with their nonces), one per direction. A refusal is not authenticated: whoever can
// write to the connection can also break it.
//
// Thread safety: a handshake belongs to one connection and one thread.
// Errors: the first refusal is final; an object serves one exchange.
// Does not: keep time (the caller gives the whole exchange 5 s), compare ranks (the caller does, in `decide`
// or with `if_proven`).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/bytes.h"
#include "lockstep/base/crypto.h"
#include "lockstep/base/secret.h"
#include "lockstep/base/status.h"

namespace lockstep::base {

// Bumped by a release that changes any byte format; both sides must agree exactly.
constexpr std::uint16_t kWireVersion = 1;

enum class Role : std::uint8_t { kStore = 1, kControl = 2, kData = 3, kHeap = 4 };

enum class Verdict : std::uint8_t {
  kAccepted = 0,
  kNotLockstep = 1,
  kWrongVersion = 2,
  kWrongRole = 3,
  kWrongJob = 4,
  kWrongEpoch = 5,
  kWrongSecret = 6,
  kDuplicateRank = 7,
  kTooMany = 8,
  kWrongTable = 9,
};
std::string_view verdict_text(Verdict verdict);

// What a client says of itself. The job id travels as a hash: its text is not shown to strangers.
struct HandshakeIdentity {
  Role role = Role::kStore;
  std::string job_id;
  std::uint64_t epoch = 0;
  std::uint32_t rank = 0;  // kNoRank for a client without one
};
constexpr std::uint32_t kNoRank = 0xffffffff;

struct SessionKeys {
  SealKey client_to_server;
  SealKey server_to_client;
};

constexpr std::size_t kClientHelloSize = 72;
constexpr std::size_t kServerHelloSize = 72;
constexpr std::size_t kProofSize = 32;
constexpr std::size_t kVerdictSize = 8;

using JobHash = std::array<std::byte, 16>;
JobHash job_hash(std::string_view job_id);

class ClientHandshake {
 public:
  ClientHandshake(HandshakeIdentity identity, Secret secret);
  // First message to send.
  const std::array<std::byte, kClientHelloSize>& hello() const { return hello_; }
  // Takes the server's hello; the answer is the proof to send. The error says who is wrong and both versions.
  Result<std::array<std::byte, kProofSize>> on_server_hello(
      std::span<const std::byte, kServerHelloSize> message);
  // Takes the verdict.
  Status on_verdict(std::span<const std::byte, kVerdictSize> message);
  // Only once on_verdict() was ok.
  SessionKeys keys() const;

 private:
  Status refused(Verdict verdict) const;
  Cause cause(Failure failure) const;

  HandshakeIdentity identity_;
  Secret secret_;
  std::array<std::byte, kClientHelloSize> hello_{};
  std::array<std::byte, kServerHelloSize> server_hello_{};
  std::array<std::byte, kProofSize> proof_{};
  bool accepted_ = false;
};

// What the server learns from a client's hello before anything is proven.
struct ClientClaim {
  std::uint16_t version = 0;
  std::uint32_t table = 0;  // kWireTable of its library
  Role role = Role::kStore;
  JobHash job{};
  std::uint64_t epoch = 0;
  std::uint32_t rank = 0;
  bool insecure = false;  // it has no secret of its own
};

class ServerHandshake {
 public:
  // Judges a claim: the secret of the job it names, or why not. Called once, before anything is proven.
  // An insecure client and a real secret, or the other way round, end in kWrongSecret without more ado.
  struct Decision {
    Verdict verdict = Verdict::kAccepted;
    std::optional<Secret> secret;  // set if accepted
  };
  using Decide = std::function<Decision(const ClientClaim&)>;

  explicit ServerHandshake(Decide decide) : decide_(std::move(decide)) {}

  // Takes the client's hello; the answer is to be sent in any case. If claim() is not acceptable (verdict()
  // is not kAccepted) the connection is closed after that.
  std::array<std::byte, kServerHelloSize> on_client_hello(
      std::span<const std::byte, kClientHelloSize> message);
  // Takes the client's proof; the answer is to be sent in any case, then the connection is closed unless
  // accepted() holds. `if_proven` answers a right proof: what the caller can judge only of a client that has
  // proven itself, as that its rank is here already.
  std::array<std::byte, kVerdictSize> on_proof(std::span<const std::byte, kProofSize> message,
                                               Verdict if_proven = Verdict::kAccepted);

  // The verdict so far: kAccepted means that nothing speaks against the client yet.
  Verdict verdict() const { return verdict_; }
  // The client has proven that it holds the secret, and was let in.
  bool accepted() const { return accepted_; }
  const ClientClaim& claim() const { return claim_; }
  // For the log line about a client that was refused, or that went away before accepted().
  std::string refusal_text() const;
  // Only once accepted().
  SessionKeys keys() const;

 private:
  Verdict judge(std::span<const std::byte, kClientHelloSize> message);

  Decide decide_;
  ClientClaim claim_;
  Verdict verdict_ = Verdict::kAccepted;
  bool accepted_ = false;
  std::optional<Secret> secret_;  // of the job that the claim names
  std::array<std::byte, kClientHelloSize> client_hello_{};
  std::array<std::byte, kServerHelloSize> server_hello_{};
};

}  // namespace lockstep::base
