// The frames that two messengers exchange. Grammar: docs/wire/messages.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/base/bytes.h"
#include "lockstep/base/status.h"

namespace lockstep::transport::messages {

enum class FrameKind : std::uint8_t {
  kHello = 1,    // the connection that the higher rank made is used
  kYield = 2,    // it is not: the lower rank makes one
  kEager = 3,    // a message; its payload follows
  kAsk = 4,      // a message whose payload waits for kGo
  kGo = 5,       // its receive is posted
  kData = 6,     // a piece of its payload follows
  kAbandon = 7,  // its sender withdraws it
  kRefuse = 8,   // its receiver does not take it
  kCredit = 9,   // nothing but the credit
  kOffer = 10,   // its payload lies in the sender's heap; only between ranks of one host
  kTaken = 11,   // and was copied from there
  kWatch = 12,   // a receive of the group waits; is the other side still in it?
  kLeft = 13,    // it is not
};

// Why a receiver refuses a message, or its sender abandons it, or who was watched takes no part any more.
enum class Refusal : std::uint8_t {
  kNone = 0,
  kSize = 1,       // the receive has another size; of kRefuse only
  kGroup = 2,      // that side has left the group
  kWithdrawn = 3,  // the deadline of the call has passed; not of kLeft
  kFailed = 4,     // the group has failed
};

// Fields that a kind does not use are zero.
struct Frame {
  FrameKind kind = FrameKind::kCredit;
  Refusal refusal = Refusal::kNone;
  std::uint32_t credit = 0;  // of any kind: eager bytes of the other side that are free again
  std::uint64_t group = 0;
  std::uint64_t tag = 0;
  std::uint64_t id = 0;    // of the message, counted by its sender from 1
  std::uint64_t size = 0;  // of the message; of kData, of this piece
  std::uint64_t room = 0;  // of kRefuse with kSize: the receive's; of kOffer: where the payload lies

  bool operator==(const Frame&) const = default;
};

constexpr std::size_t kFrameSize = 48;
constexpr std::size_t kPieceLimit = 256U << 10;
constexpr std::uint64_t kMessageLimit = std::uint64_t{1} << 40;
// Messages of one sender that have asked and wait for their receive.
constexpr std::size_t kAskLimit = 1U << 16;

// What an eager message takes of the budget: its bytes, and what it costs to keep an empty one.
constexpr std::size_t eager_cost(std::uint64_t size) { return static_cast<std::size_t>(size) + 128; }

void append_frame(Buffer& out, const Frame& frame);
// kDisconnected with kCorruptFrame, or kLimitExceeded for a size above its limit: the stream cannot go on.
Result<Frame> parse_frame(ByteView bytes);

}  // namespace lockstep::transport::messages
