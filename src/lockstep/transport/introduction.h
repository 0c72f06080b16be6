// What the two ends of a connection tell each other once the handshake has proven that they share a job.
//
// Grammar: docs/wire/connection.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "lockstep/base/bytes.h"
#include "lockstep/base/status.h"
#include "lockstep/transport/transport.h"

namespace lockstep::transport {

// How the records of a TCP connection are protected.
enum class Protection : std::uint8_t {
  kSealed = 1,     // AES-128-GCM: secret and authentic
  kIntegrity = 2,  // CRC32C: an accident is noticed, an attacker on the way is not
};
std::string_view protection_name(Protection protection);

struct Introduction {
  Protection protection = Protection::kSealed;
  std::optional<Rank> rank = {};
  WorldSize world{1};

  bool operator==(const Introduction&) const = default;
};

constexpr std::size_t kIntroductionSize = 9;
Buffer introduction_bytes(const Introduction& introduction);
// kCorruptFrame if it does not follow the grammar.
Result<Introduction> parse_introduction(ByteView bytes);

// Whether the two can talk. `expected` is the rank that must be at the other end. The message is the end of a
// sentence about the other end, and says both values.
Status judge_introduction(const Introduction& own, const Introduction& other, std::optional<Rank> expected);

}  // namespace lockstep::transport
