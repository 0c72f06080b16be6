#include "lockstep/transport/link/frame.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/text.h"

namespace lockstep::transport::link {
namespace {

constexpr std::uint32_t kFrameMagic = 0x52464b4c;  // "LKFR"

// As it lies in memory; the supported machines are little-endian.
struct Raw {
  std::uint32_t magic;
  std::uint8_t kind;
  std::uint8_t more;
  std::uint16_t age_ms;
  std::uint32_t size;
  std::uint32_t part;
  std::uint32_t payload_crc;
  Stamp stamp;
  std::uint32_t header_crc;
};
static_assert(sizeof(Raw) == kHeaderSize);

std::uint32_t crc_of(const Header& header) {
  return base::crc32c(ByteView(header).first(offsetof(Raw, header_crc)));
}

Status corrupt(std::string_view what) {
  return Status::disconnected(cat("a frame arrived damaged: ", what), {.failure = Failure::kCorruptFrame});
}

}  // namespace

Header write_header(const Frame& frame) {
  const Raw raw{.magic = kFrameMagic,
                .kind = static_cast<std::uint8_t>(frame.kind),
                .more = static_cast<std::uint8_t>(frame.more),
                .age_ms = static_cast<std::uint16_t>(std::min(frame.age, kLongestAge).count()),
                .size = frame.size,
                .part = frame.part,
                .payload_crc = frame.payload_crc,
                .stamp = frame.stamp,
                .header_crc = 0};
  Header header;
  std::memcpy(header.data(), &raw, sizeof(raw));
  const std::uint32_t crc = crc_of(header);
  std::memcpy(header.data() + offsetof(Raw, header_crc), &crc, sizeof(crc));
  return header;
}

Result<Frame> parse_header(const Header& header) {
  Raw raw;
  std::memcpy(&raw, header.data(), sizeof(raw));
  if (raw.header_crc != crc_of(header)) return corrupt("the checksum of its header is wrong");
  if (raw.magic != kFrameMagic) return corrupt("it does not begin as a frame does");
  if (raw.kind < static_cast<std::uint8_t>(FrameKind::kData) ||
      raw.kind > static_cast<std::uint8_t>(FrameKind::kWaiting)) {
    return corrupt(cat("its kind is ", static_cast<int>(raw.kind)));
  }
  if (raw.more > 1) return corrupt("it has unknown flags");
  if (raw.kind == static_cast<std::uint8_t>(FrameKind::kWaiting) && raw.size != 0)
    return corrupt("it has a payload that its kind has not");
  if (raw.size > kMaxPayload) {
    return Status::disconnected(
        cat("a frame announces ", Bytes{raw.size}, "; the most is ", Bytes{kMaxPayload}),
        {.failure = Failure::kLimitExceeded});
  }
  return Frame{.kind = static_cast<FrameKind>(raw.kind),
               .more = raw.more != 0,
               .size = raw.size,
               .part = raw.part,
               .payload_crc = raw.payload_crc,
               .age = std::chrono::milliseconds(raw.age_ms),
               .stamp = raw.stamp};
}

}  // namespace lockstep::transport::link
