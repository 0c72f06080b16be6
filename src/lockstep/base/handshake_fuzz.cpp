// Feeds the input to both sides of a handshake, as what a stranger without the secret sends. Nothing may
// crash, and nobody may be let in.
#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/base/handshake.h"

namespace lockstep::base {
namespace {

// The next `kSize` bytes of the input, filled up with zeros.
template <std::size_t kSize>
std::array<std::byte, kSize> take(ByteView& input) {
  std::array<std::byte, kSize> out{};
  const std::size_t count = std::min(kSize, input.size());
  std::copy_n(input.begin(), count, out.begin());
  input = input.subspan(count);
  return out;
}

void attack_server(ByteView input, const Secret& secret) {
  ServerHandshake server([&](const ClientClaim& claim) -> ServerHandshake::Decision {
    if (claim.epoch > 1) return {.verdict = Verdict::kWrongEpoch, .secret = {}};
    return {.verdict = Verdict::kAccepted, .secret = secret};
  });
  server.on_client_hello(take<kClientHelloSize>(input));
  server.on_proof(take<kProofSize>(input));
  LOCKSTEP_CHECK(!server.accepted(), "a stranger was let in");
  LOCKSTEP_CHECK(!server.refusal_text().empty(), "a refusal has a text");
}

void attack_client(ByteView input, const Secret& secret) {
  ClientHandshake client({.role = Role::kStore, .job_id = "fuzz", .epoch = 1, .rank = 0}, secret);
  LOCKSTEP_CHECK(!client.on_server_hello(take<kServerHelloSize>(input)).ok(),
                 "a stranger was taken for the server");
  LOCKSTEP_CHECK(!client.on_verdict(take<kVerdictSize>(input)).ok(), "a stranger's verdict was believed");
}

}  // namespace
}  // namespace lockstep::base

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::base;
  static const Secret kSecret = Secret::generate();
  const ByteView input = std::as_bytes(std::span(data, size));
  attack_server(input, kSecret);
  attack_client(input, kSecret);
  return 0;
}
