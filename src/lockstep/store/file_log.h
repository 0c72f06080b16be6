// The bytes of a FileStore's file: a header, then a log of checksummed records. docs/wire/file_store.md has
// the grammar. Pure functions on bytes; what is done with the file itself is LogFile's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/status.h"
#include "lockstep/store/key_values.h"

namespace lockstep::store {

constexpr std::uint32_t kLogVersion = 1;
constexpr std::size_t kLogHeaderSize = 32;
constexpr std::size_t kRecordHeaderSize = 12;
constexpr std::size_t kMaxRecordSize = 256U << 20;  // of its body

// Random, made with the store. A file at the same path with another identity is another store.
using LogIdentity = std::array<std::byte, 16>;

std::array<std::byte, kLogHeaderSize> encode_log_header(const LogIdentity& identity);
// Whether `bytes`, fewer than a header, may be the beginning of one whose writer was killed.
bool is_torn_log_header(ByteView bytes);
// `bytes` are kLogHeaderSize. kInvalid if they are something else's, kUnsupported with kVersionMismatch if
// they are a later version's.
Result<LogIdentity> parse_log_header(ByteView bytes);

enum class LogOp : std::uint8_t {
  kSet = 1,  // one or more entries, in one step
  kDelete = 2,
  kAppend = 3,
  kPush = 4,
  kPop = 5,
  kReplaced = 6,  // no entries: a compacted file has taken this one's place
};
struct LogEntry {
  std::string_view name;
  ByteView value;  // empty for kDelete and kPop
};
// Views into the bytes that it was parsed from, or that its maker owns.
struct LogRecord {
  LogOp op = LogOp::kSet;
  std::vector<LogEntry> entries = {};
};

// Appends the record to `out`. kInvalid with kLimitExceeded if it is too large; `out` is then unchanged.
Status encode_record(const LogRecord& record, Buffer& out);

struct ParsedRecord {
  enum class Kind {
    kWhole,
    kTorn,     // a beginning only: its writer was killed, or has not finished
    kDamaged,  // no writer of ours leaves this
  };
  Kind kind = Kind::kTorn;
  LogRecord record = {};  // of a whole one
  std::size_t size = 0;  // of a whole one, header included; of a torn one, how many bytes are needed to go on
};
// The first record of `bytes`.
ParsedRecord parse_record(ByteView bytes);

// Does to `state` what the record says. kInternal with kCorruptFrame if that cannot be done.
Status apply_record(const LogRecord& record, KeyValues& state);

}  // namespace lockstep::store
