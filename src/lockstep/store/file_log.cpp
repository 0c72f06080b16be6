#include "lockstep/store/file_log.h"

#include <algorithm>
#include <string>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/text.h"
#include "lockstep/store/store_errors.h"

namespace lockstep::store {

using base::ByteReader;
using base::ByteWriter;
using base::crc32c;

namespace {

constexpr std::string_view kMagic = "lockstep";
constexpr std::size_t kChecked = kLogHeaderSize - sizeof(std::uint32_t);

bool has_value(LogOp op) { return op == LogOp::kSet || op == LogOp::kAppend || op == LogOp::kPush; }

// How many entries a record of this kind may have.
bool fits(LogOp op, std::size_t entries) {
  switch (op) {
    case LogOp::kSet:
      return entries >= 1;
    case LogOp::kDelete:
    case LogOp::kAppend:
    case LogOp::kPush:
    case LogOp::kPop:
      return entries == 1;
    case LogOp::kReplaced:
      return entries == 0;
  }
  return false;
}

// Nothing if the body is not one.
bool parse_body(ByteView body, LogRecord& out) {
  ByteReader reader(body);
  out.op = static_cast<LogOp>(reader.integer<std::uint8_t>());
  while (reader.ok() && reader.left() > 0) {
    LogEntry entry;
    entry.name = text_of(reader.sized(kMaxKeySize));
    if (has_value(out.op)) entry.value = reader.sized(kMaxValueSize);
    if (entry.name.empty()) return false;
    out.entries.push_back(entry);
  }
  return reader.complete() && fits(out.op, out.entries.size());
}

Status cannot_apply(std::string_view why) {
  return Status::internal(cat("a record cannot be applied: ", why), {.failure = Failure::kCorruptFrame});
}

}  // namespace

std::array<std::byte, kLogHeaderSize> encode_log_header(const LogIdentity& identity) {
  Buffer bytes;
  ByteWriter writer(bytes);
  writer.raw(bytes_of(kMagic));
  writer.integer(kLogVersion);
  writer.raw(identity);
  writer.integer(crc32c(bytes));
  std::array<std::byte, kLogHeaderSize> out{};
  std::copy(bytes.begin(), bytes.end(), out.begin());
  return out;
}

bool is_torn_log_header(ByteView bytes) {
  const std::size_t known = std::min(bytes.size(), kMagic.size());
  return bytes.size() < kLogHeaderSize && text_of(bytes.first(known)) == kMagic.substr(0, known);
}

Result<LogIdentity> parse_log_header(ByteView bytes) {
  ByteReader reader(bytes);
  const ByteView magic = reader.take(kMagic.size());
  if (text_of(magic) != kMagic) return Status::invalid("it is not a Lockstep store");
  const auto version = reader.integer<std::uint32_t>();
  LogIdentity identity{};
  const ByteView id = reader.take(identity.size());
  const auto checksum = reader.integer<std::uint32_t>();
  if (!reader.complete() || checksum != crc32c(bytes.first(kChecked))) {
    return Status::invalid("its header is damaged", {.failure = Failure::kCorruptFrame});
  }
  if (version != kLogVersion) {
    return Status::unsupported(
        cat("its format has version ", version, ", and this library knows version ", kLogVersion),
        {.failure = Failure::kVersionMismatch});
  }
  std::copy(id.begin(), id.end(), identity.begin());
  return identity;
}

Status encode_record(const LogRecord& record, Buffer& out) {
  std::size_t size = 1;
  for (const LogEntry& entry : record.entries) size += 8 + entry.name.size() + entry.value.size();
  if (size > kMaxRecordSize) {
    return Status::invalid(cat("one step of ", Bytes(size), " is too large for a FileStore; the limit is ",
                               Bytes(kMaxRecordSize)),
                           {.failure = Failure::kLimitExceeded});
  }
  const std::size_t start = out.size();
  out.reserve(start + kRecordHeaderSize + size);
  ByteWriter writer(out);
  writer.raw(std::array<std::byte, kRecordHeaderSize>{});
  writer.integer(static_cast<std::uint8_t>(record.op));
  for (const LogEntry& entry : record.entries) {
    writer.sized(entry.name);
    if (has_value(record.op)) writer.sized(entry.value);
  }
  const ByteView body = ByteView(out).subspan(start + kRecordHeaderSize);
  Buffer header;
  ByteWriter header_writer(header);
  header_writer.integer(static_cast<std::uint32_t>(body.size()));
  header_writer.integer(crc32c(body));
  header_writer.integer(crc32c(header));
  std::copy(header.begin(), header.end(), out.begin() + static_cast<std::ptrdiff_t>(start));
  return {};
}

ParsedRecord parse_record(ByteView bytes) {
  using Kind = ParsedRecord::Kind;
  if (bytes.size() < kRecordHeaderSize) return {.kind = Kind::kTorn, .size = kRecordHeaderSize};
  ByteReader reader(bytes);
  const auto length = reader.integer<std::uint32_t>();
  const auto body_checksum = reader.integer<std::uint32_t>();
  const auto header_checksum = reader.integer<std::uint32_t>();
  // The length is believed only with its own checksum: a damaged one would make the rest look torn.
  if (header_checksum != crc32c(bytes.first(8)) || length > kMaxRecordSize) return {.kind = Kind::kDamaged};
  if (length > reader.left()) return {.kind = Kind::kTorn, .size = kRecordHeaderSize + length};
  const ByteView body = reader.take(length);
  ParsedRecord out{.kind = Kind::kWhole, .size = kRecordHeaderSize + length};
  if (crc32c(body) != body_checksum || !parse_body(body, out.record)) return {.kind = Kind::kDamaged};
  return out;
}

Status apply_record(const LogRecord& record, KeyValues& state) {
  if (!fits(record.op, record.entries.size())) return cannot_apply("it has the wrong number of entries");
  if (record.op == LogOp::kReplaced) return {};
  const LogEntry& first = record.entries.front();
  switch (record.op) {
    case LogOp::kSet: {
      if (record.entries.size() == 1) return state.set(first.name, first.value);
      std::vector<std::string> keys;
      std::vector<ByteView> values;
      for (const LogEntry& entry : record.entries) {
        keys.emplace_back(entry.name);
        values.push_back(entry.value);
      }
      return state.multi_set(keys, values);
    }
    case LogOp::kDelete:
      return state.delete_key(first.name) ? Status() : cannot_apply("it deletes a key that is not there");
    case LogOp::kAppend:
      return state.append(first.name, first.value);
    case LogOp::kPush:
      return state.queue_push(first.name, first.value);
    case LogOp::kPop:
      return state.queue_pop(first.name) ? Status() : cannot_apply("it pops from an empty queue");
    case LogOp::kReplaced:
      break;
  }
  return {};
}

}  // namespace lockstep::store
