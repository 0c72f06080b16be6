#include "lockstep/store/tcp_wire.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/base/wire_table.h"
#include "lockstep/store/member.h"

namespace lockstep::store {

// What the handshake has compared.
static_assert(base::kWireLimits.world == kMaxWorldSize && base::kWireLimits.key == kMaxKeySize &&
              base::kWireLimits.value == kMaxValueSize &&
              base::kWireLimits.keys_per_call == kMaxKeysPerCall &&
              base::kWireLimits.message == kMaxMessageSize);

namespace {

using base::ByteReader;
using base::ByteWriter;

constexpr std::size_t kRequestHeadSize = 8 + 1 + 1 + 8;
constexpr std::size_t kMaxErrorText = 64U << 10;
constexpr std::uint8_t kOkByte = 0;

std::size_t sized(std::size_t count) { return 4 + count; }

// Microseconds, so that a timeout of years still fits and one of nanoseconds is not taken for none.
std::uint64_t to_wire(Duration timeout) {
  const auto micros = std::chrono::ceil<std::chrono::microseconds>(std::max(timeout, Duration::zero()));
  return static_cast<std::uint64_t>(micros.count());
}

// A timeout beyond a year is a year: the sum with the server's clock must not overflow.
Duration from_wire(std::uint64_t micros) {
  constexpr std::uint64_t kYear = 365ULL * 24 * 3600 * 1'000'000;
  return std::chrono::microseconds(std::min(micros, kYear));
}

Status corrupt(std::string_view what) {
  return Status::invalid(cat("A store message does not follow the wire format: ", what, "."),
                         {.failure = Failure::kCorruptFrame});
}

Status too_many_keys(std::uint32_t count) {
  return Status::invalid(
      cat("A store call names ", count, " keys; at most ", kMaxKeysPerCall, " are allowed."),
      {.failure = Failure::kLimitExceeded});
}

void begin_response(std::uint64_t id, std::uint8_t code, Buffer& out) {
  ByteWriter writer(out);
  writer.integer(id);
  writer.integer(code);
}

// A key has at least one byte: a length of 0 is as wrong as one above the limit.
std::string_view read_key(ByteReader& reader) {
  const std::string_view key = text_of(reader.sized(kMaxKeySize));
  if (key.empty()) reader.take(reader.left() + 1);  // more than there is, which fails
  return key;
}

// Each key takes at least four bytes, so a count above a quarter of the rest is refused before it is
// believed.
Status read_keys(ByteReader& reader, Request& out) {
  const auto count = reader.integer<std::uint32_t>();
  if (count > kMaxKeysPerCall) return too_many_keys(count);
  if (count > reader.left() / 4) return corrupt("more keys announced than sent");
  out.keys.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    out.keys.push_back(read_key(reader));
    if (out.op == Op::kMultiSet) out.values.push_back(reader.sized(kMaxValueSize));
  }
  return {};
}

Status read_body(ByteReader& reader, Request& out) {
  switch (out.op) {
    case Op::kSet:
    case Op::kAppend:
    case Op::kQueuePush:
    case Op::kSetWill:
      out.key = read_key(reader);
      out.value = reader.sized(kMaxValueSize);
      return {};
    case Op::kGet:
    case Op::kDeleteKey:
    case Op::kQueueLen:
      out.key = read_key(reader);
      return {};
    case Op::kCompareSet:
      out.key = read_key(reader);
      out.expected = reader.sized(kMaxValueSize);
      out.value = reader.sized(kMaxValueSize);
      return {};
    case Op::kAdd:
    case Op::kBarrier:
      out.key = read_key(reader);
      out.amount = reader.integer<std::int64_t>();
      return {};
    case Op::kQueuePop: {
      out.key = read_key(reader);
      const auto on_empty = reader.integer<std::uint8_t>();
      if (on_empty > 1) return corrupt("queue_pop has an unknown mode");
      out.on_empty = static_cast<Store::OnEmpty>(on_empty);
      return {};
    }
    case Op::kCheck:
    case Op::kWait:
    case Op::kMultiGet:
    case Op::kMultiSet:
      return read_keys(reader, out);
    case Op::kNumKeys:
    case Op::kListKeys:
      return {};
    case Op::kCancel:
      out.target = reader.integer<std::uint64_t>();
      return {};
  }
  return corrupt("unknown operation");
}

bool may_skip_answer(Op op) { return op == Op::kSet || op == Op::kQueuePush || op == Op::kSetWill; }

}  // namespace

std::string_view op_name(Op op) {
  static constexpr std::array<std::string_view, static_cast<std::size_t>(kLastOp) + 1> kNames = {
      "?",          "set",       "get",    "compare_set", "add",       "check",      "wait",
      "delete_key", "num_keys",  "append", "multi_get",   "multi_set", "queue_push", "queue_pop",
      "queue_len",  "list_keys", "cancel", "barrier",     "set_will"};
  const auto index = static_cast<std::size_t>(op);
  return index < kNames.size() ? kNames[index] : kNames[0];
}

std::size_t request_size(const Request& request) {
  std::size_t size = kRequestHeadSize;
  switch (request.op) {
    case Op::kSet:
    case Op::kAppend:
    case Op::kQueuePush:
    case Op::kSetWill:
      return size + sized(request.key.size()) + sized(request.value.size());
    case Op::kGet:
    case Op::kDeleteKey:
    case Op::kQueueLen:
      return size + sized(request.key.size());
    case Op::kCompareSet:
      return size + sized(request.key.size()) + sized(request.expected.size()) + sized(request.value.size());
    case Op::kAdd:
    case Op::kBarrier:
      return size + sized(request.key.size()) + 8;
    case Op::kQueuePop:
      return size + sized(request.key.size()) + 1;
    case Op::kCheck:
    case Op::kWait:
    case Op::kMultiGet:
    case Op::kMultiSet:
      size += 4;
      for (const std::string_view key : request.keys) size += sized(key.size());
      for (const ByteView value : request.values) size += sized(value.size());
      return size;
    case Op::kNumKeys:
    case Op::kListKeys:
      return size;
    case Op::kCancel:
      return size + 8;
  }
  return size;
}

void write_request(const Request& request, Buffer& out) {
  ByteWriter writer(out);
  writer.integer(request.id);
  writer.integer(static_cast<std::uint8_t>(request.op));
  writer.integer(static_cast<std::uint8_t>(request.answer));
  writer.integer(to_wire(request.timeout));
  switch (request.op) {
    case Op::kSet:
    case Op::kAppend:
    case Op::kQueuePush:
    case Op::kSetWill:
      writer.sized(request.key);
      writer.sized(request.value);
      break;
    case Op::kGet:
    case Op::kDeleteKey:
    case Op::kQueueLen:
      writer.sized(request.key);
      break;
    case Op::kCompareSet:
      writer.sized(request.key);
      writer.sized(request.expected);
      writer.sized(request.value);
      break;
    case Op::kAdd:
    case Op::kBarrier:
      writer.sized(request.key);
      writer.integer(request.amount);
      break;
    case Op::kQueuePop:
      writer.sized(request.key);
      writer.integer(static_cast<std::uint8_t>(request.on_empty));
      break;
    case Op::kCheck:
    case Op::kWait:
    case Op::kMultiGet:
    case Op::kMultiSet:
      writer.integer(static_cast<std::uint32_t>(request.keys.size()));
      for (std::size_t i = 0; i < request.keys.size(); ++i) {
        writer.sized(request.keys[i]);
        if (request.op == Op::kMultiSet) writer.sized(request.values[i]);
      }
      break;
    case Op::kNumKeys:
    case Op::kListKeys:
      break;
    case Op::kCancel:
      writer.integer(request.target);
      break;
  }
}

Status parse_request(ByteView message, Request& out) {
  out.keys.clear();
  out.values.clear();
  ByteReader reader(message);
  out.id = reader.integer<std::uint64_t>();
  const auto op = reader.integer<std::uint8_t>();
  const auto answer = reader.integer<std::uint8_t>();
  out.timeout = from_wire(reader.integer<std::uint64_t>());
  if (!reader.ok()) return corrupt("shorter than its head");
  if (op == 0 || op > static_cast<std::uint8_t>(kLastOp)) return corrupt(cat("unknown operation ", op));
  out.op = static_cast<Op>(op);
  if (answer > 1) return corrupt("unknown answer mode");
  out.answer = static_cast<Answer>(answer);
  if (out.answer == Answer::kOnError && !may_skip_answer(out.op)) {
    return corrupt(cat(op_name(out.op), " is always answered"));
  }
  LOCKSTEP_TRY(read_body(reader, out));
  if (!reader.complete()) return corrupt(cat(op_name(out.op), " has fields too long, missing or left over"));
  return {};
}

void write_error(std::uint64_t id, const Status& status, Buffer& out) {
  begin_response(id, static_cast<std::uint8_t>(status.code()), out);
  ByteWriter writer(out);
  writer.integer(static_cast<std::uint8_t>(status.failure()));
  writer.sized(status.message().substr(0, kMaxErrorText));
}

void write_done(std::uint64_t id, Buffer& out) { begin_response(id, kOkByte, out); }

void write_value(std::uint64_t id, ByteView value, Buffer& out) {
  begin_response(id, kOkByte, out);
  ByteWriter(out).raw(value);
}

void write_number(std::uint64_t id, std::int64_t number, Buffer& out) {
  begin_response(id, kOkByte, out);
  ByteWriter(out).integer(number);
}

void write_flag(std::uint64_t id, bool flag, Buffer& out) {
  begin_response(id, kOkByte, out);
  ByteWriter(out).integer(static_cast<std::uint8_t>(flag));
}

void write_list_head(std::uint64_t id, std::uint32_t count, Buffer& out) {
  begin_response(id, kOkByte, out);
  ByteWriter(out).integer(count);
}

void write_list_item(ByteView item, Buffer& out) { ByteWriter(out).sized(item); }

Status parse_response(ByteView message, Response& out) {
  ByteReader reader(message);
  out.id = reader.integer<std::uint64_t>();
  const auto code = reader.integer<std::uint8_t>();
  if (!reader.ok()) return corrupt("an answer shorter than its head");
  if (code == kOkByte) {
    out.status = {};
    out.body = reader.take(reader.left());
    return {};
  }
  const auto failure = reader.integer<std::uint8_t>();
  const std::string_view text = text_of(reader.sized(kMaxErrorText));
  if (!reader.complete()) return corrupt("an error that is cut short or too long");
  if (code > static_cast<std::uint8_t>(Code::kInternal)) return corrupt(cat("unknown error code ", code));
  if (failure > static_cast<std::uint8_t>(Failure::kClosed)) return corrupt(cat("unknown failure ", failure));
  out.status = Status(static_cast<Code>(code), std::string(text), {.failure = static_cast<Failure>(failure)});
  out.body = {};
  return {};
}

Result<std::int64_t> parse_number(ByteView body) {
  ByteReader reader(body);
  const auto number = reader.integer<std::int64_t>();
  if (!reader.complete()) return corrupt("a number of the wrong size");
  return number;
}

Result<bool> parse_flag(ByteView body) {
  ByteReader reader(body);
  const auto flag = reader.integer<std::uint8_t>();
  if (!reader.complete() || flag > 1) return corrupt("a flag that is neither 0 nor 1");
  return flag == 1;
}

Result<std::vector<ByteView>> parse_list(ByteView body) {
  ByteReader reader(body);
  const auto count = reader.integer<std::uint32_t>();
  if (!reader.ok() || count > reader.left() / 4) return corrupt("more items announced than sent");
  std::vector<ByteView> items;
  items.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) items.push_back(reader.sized(kMaxValueSize));
  if (!reader.complete()) return corrupt("a list that is cut short or too long");
  return items;
}

}  // namespace lockstep::store
