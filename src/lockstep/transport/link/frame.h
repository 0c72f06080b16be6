// The frames that a link's stream of bytes is cut into. Grammar: docs/wire/links.md.
//
// Thread safety: pure functions.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "lockstep/base/bytes.h"
#include "lockstep/base/status.h"

namespace lockstep::transport::link {

// What both ends must say of the operation that a frame belongs to. Opaque here: collective/ makes it.
constexpr std::size_t kStampSize = 40;
using Stamp = std::array<std::byte, kStampSize>;

// The values are part of the wire format.
enum class FrameKind : std::uint8_t {
  kData = 1,
  kAbort = 2,    // the group has failed; the payload is a status (base/status_bytes.h)
  kGoodbye = 3,  // the sender has left; the stamp is of its last operation
  kWaiting = 4,  // the sender is in the operation of the stamp, and waits for the receiver; no payload
};

constexpr std::size_t kMaxPayload = 256U << 10;
constexpr std::chrono::milliseconds kLongestAge{0xffff};
constexpr std::size_t kHeaderSize = 64;
using Header = std::array<std::byte, kHeaderSize>;

struct Frame {
  FrameKind kind = FrameKind::kData;
  bool more = false;              // the message goes on in the next frame
  std::uint32_t size = 0;         // of the payload
  std::uint32_t part = 0;         // which message of the operation, between these two ranks
  std::uint32_t payload_crc = 0;  // CRC32C; 0 where the frame is sealed
  // How long the sender had been in the operation when it made the frame, rounded up, and at most
  // kLongestAge.
  std::chrono::milliseconds age{};
  Stamp stamp{};
};

Header write_header(const Frame& frame);
// kDisconnected with kCorruptFrame, or kLimitExceeded for a size that no frame has.
Result<Frame> parse_header(const Header& header);

}  // namespace lockstep::transport::link
