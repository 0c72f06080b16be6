#include "lockstep/base/status_bytes.h"

#include <algorithm>

namespace lockstep::base {
namespace {

constexpr std::size_t kMaxMessage = 512;
constexpr std::size_t kMaxName = 48;     // of an op, a group, a host
constexpr std::size_t kMaxMissing = 64;  // the message names them all

std::string_view cut(std::string_view text, std::size_t limit) { return text.substr(0, limit); }
std::int32_t number_of(const std::optional<Rank>& rank) { return rank ? rank->value : -1; }
std::optional<Rank> rank_of(std::int32_t number) {
  return number < 0 ? std::nullopt : std::optional(Rank(number));
}

}  // namespace

Buffer write_status(const Status& status) {
  Buffer bytes;
  ByteWriter out(bytes);
  const Cause& cause = status.cause();
  out.integer(static_cast<std::uint8_t>(status.code()));
  out.integer(static_cast<std::uint8_t>(cause.failure));
  out.integer(number_of(cause.rank));
  out.integer(number_of(cause.peer));
  out.integer(static_cast<std::int32_t>(cause.pid.value_or(-1)));
  out.integer(static_cast<std::uint8_t>(cause.sequence.has_value()));
  out.integer(cause.sequence.value_or(0));
  out.sized(cut(cause.op, kMaxName));
  out.sized(cut(cause.group, kMaxName));
  out.sized(cut(cause.host, kMaxName));
  const std::size_t missing = std::min(cause.missing.size(), kMaxMissing);
  out.integer(static_cast<std::uint8_t>(missing));
  for (std::size_t i = 0; i < missing; ++i) out.integer(static_cast<std::int32_t>(cause.missing[i].value));
  out.sized(cut(status.message(), kMaxMessage));
  return bytes;
}

Status parse_status(ByteView bytes) {
  ByteReader in(bytes);
  const auto code = in.integer<std::uint8_t>();
  const auto failure = in.integer<std::uint8_t>();
  Cause cause{.failure = static_cast<Failure>(failure)};
  cause.rank = rank_of(in.integer<std::int32_t>());
  cause.peer = rank_of(in.integer<std::int32_t>());
  if (const auto pid = in.integer<std::int32_t>(); pid >= 0) cause.pid = pid;
  const auto has_sequence = in.integer<std::uint8_t>();
  if (const auto sequence = in.integer<std::uint64_t>(); has_sequence != 0) cause.sequence = sequence;
  cause.op = text_of(in.sized(kMaxName));
  cause.group = text_of(in.sized(kMaxName));
  cause.host = text_of(in.sized(kMaxName));
  const auto missing = in.integer<std::uint8_t>();
  for (std::size_t i = 0; i < missing && in.ok(); ++i) cause.missing.emplace_back(in.integer<std::int32_t>());
  const std::string message(text_of(in.sized(kMaxMessage)));
  const bool known = code > static_cast<std::uint8_t>(Code::kOk) &&
                     code <= static_cast<std::uint8_t>(Code::kInternal) &&
                     failure <= static_cast<std::uint8_t>(Failure::kLeftOut);
  if (!in.complete() || !known || missing > kMaxMissing) {
    return Status::internal("another rank reports a failure that cannot be read",
                            {.failure = Failure::kCorruptFrame});
  }
  return {static_cast<Code>(code), message, std::move(cause)};
}

}  // namespace lockstep::base
