#include "lockstep/transport/messages/frame.h"

#include <optional>

#include "lockstep/base/text.h"
#include "lockstep/transport/messages/messenger.h"

namespace lockstep::transport::messages {
namespace {

// What the frames of a kind may say.
struct Rule {
  bool has_group = false;
  bool has_message = false;    // tag and id
  bool has_size = false;       // else it is 0
  std::uint64_t max_size = 0;  // of what it announces
};

std::optional<Rule> rule_of(FrameKind kind) {
  switch (kind) {
    case FrameKind::kHello:
    case FrameKind::kYield:
    case FrameKind::kCredit:
      return Rule{};
    case FrameKind::kEager:
      return Rule{.has_group = true, .has_message = true, .has_size = true, .max_size = kEagerLimit};
    case FrameKind::kData:
      return Rule{.has_group = true, .has_message = true, .has_size = true, .max_size = kPieceLimit};
    case FrameKind::kAsk:
    case FrameKind::kOffer:
    case FrameKind::kRefuse:
      return Rule{.has_group = true, .has_message = true, .has_size = true, .max_size = kMessageLimit};
    case FrameKind::kGo:
    case FrameKind::kAbandon:
    case FrameKind::kTaken:
      return Rule{.has_group = true, .has_message = true};
    case FrameKind::kWatch:
    case FrameKind::kLeft:
      return Rule{.has_group = true};
  }
  return std::nullopt;
}

bool may_say(FrameKind kind, Refusal refusal) {
  switch (kind) {
    case FrameKind::kRefuse:
      return refusal >= Refusal::kSize && refusal <= Refusal::kFailed;
    case FrameKind::kAbandon:
      return refusal >= Refusal::kGroup && refusal <= Refusal::kFailed;
    case FrameKind::kLeft:
      return refusal == Refusal::kGroup || refusal == Refusal::kFailed;
    default:
      return refusal == Refusal::kNone;
  }
}

Status corrupt(const std::string& what) {
  return Status::disconnected(cat("a frame of the message stream ", what),
                              {.failure = Failure::kCorruptFrame});
}

Status too_large(std::uint64_t size, std::uint64_t limit) {
  return Status::disconnected(cat("a frame of the message stream announces ", Bytes(size), "; at most ",
                                  Bytes(limit), " are allowed there"),
                              {.failure = Failure::kLimitExceeded});
}

}  // namespace

void append_frame(Buffer& out, const Frame& frame) {
  base::ByteWriter writer(out);
  writer.integer(static_cast<std::uint8_t>(frame.kind));
  writer.integer(static_cast<std::uint8_t>(frame.refusal));
  writer.integer(std::uint16_t{0});
  writer.integer(frame.credit);
  writer.integer(frame.group);
  writer.integer(frame.tag);
  writer.integer(frame.id);
  writer.integer(frame.size);
  writer.integer(frame.room);
}

Result<Frame> parse_frame(ByteView bytes) {
  base::ByteReader reader(bytes);
  Frame frame;
  frame.kind = static_cast<FrameKind>(reader.integer<std::uint8_t>());
  frame.refusal = static_cast<Refusal>(reader.integer<std::uint8_t>());
  const auto reserved = reader.integer<std::uint16_t>();
  frame.credit = reader.integer<std::uint32_t>();
  frame.group = reader.integer<std::uint64_t>();
  frame.tag = reader.integer<std::uint64_t>();
  frame.id = reader.integer<std::uint64_t>();
  frame.size = reader.integer<std::uint64_t>();
  frame.room = reader.integer<std::uint64_t>();
  if (!reader.complete()) return corrupt(cat("has ", bytes.size(), " bytes instead of ", kFrameSize));

  const auto rule = rule_of(frame.kind);
  if (!rule) return corrupt(cat("has the unknown kind ", static_cast<int>(frame.kind)));
  if (!may_say(frame.kind, frame.refusal))
    return corrupt(cat("has the unknown refusal ", static_cast<int>(frame.refusal)));
  const bool names_none = frame.tag == 0 && frame.id == 0;
  const bool has_room = frame.refusal == Refusal::kSize || frame.kind == FrameKind::kOffer;
  if (reserved != 0 || (!rule->has_group && frame.group != 0) || (!rule->has_message && !names_none) ||
      (!rule->has_size && frame.size != 0) || (!has_room && frame.room != 0))
    return corrupt("uses a field that its kind does not have");
  if (rule->has_message && frame.id == 0) return corrupt("names no message");
  if (frame.size > rule->max_size) return too_large(frame.size, rule->max_size);
  if (frame.room > kMessageLimit) return too_large(frame.room, kMessageLimit);
  if (frame.kind == FrameKind::kData && frame.size == 0) return corrupt("is an empty piece");
  return frame;
}

}  // namespace lockstep::transport::messages
