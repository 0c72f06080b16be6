#include "lockstep/store/file_log.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/base/crc32c.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::store {
namespace {

using lockstep::testing::FailureIs;
using lockstep::testing::StatusIs;
using ::testing::HasSubstr;
using Kind = ParsedRecord::Kind;

LogIdentity identity_of(std::uint8_t first) {
  LogIdentity out{};
  out[0] = std::byte{first};
  return out;
}

Buffer encoded(const LogRecord& record) {
  Buffer out;
  EXPECT_OK(encode_record(record, out));
  return out;
}

// One of each kind; the views point to literals.
std::vector<LogRecord> records() {
  return {
      {LogOp::kSet, {{"key", bytes_of("value")}}},
      {LogOp::kSet, {{"a", bytes_of("1")}, {"b", {}}, {"c", bytes_of("3")}}},
      {LogOp::kDelete, {{"key", {}}}},
      {LogOp::kAppend, {{"a", bytes_of("more")}}},
      {LogOp::kPush, {{"queue", bytes_of("item")}}},
      {LogOp::kPop, {{"queue", {}}}},
      {LogOp::kReplaced, {}},
  };
}

TEST(FileLog, AHeaderCarriesTheIdentity) {
  const auto header = encode_log_header(identity_of(7));
  ASSERT_OK_AND_ASSIGN(const LogIdentity identity, parse_log_header(header));
  EXPECT_EQ(identity, identity_of(7));
}

TEST(FileLog, ABeginningOfAHeaderIsTornAndNothingElseIs) {
  const auto header = encode_log_header(identity_of(7));
  for (std::size_t size = 0; size < header.size(); ++size) {
    EXPECT_TRUE(is_torn_log_header(ByteView(header).first(size))) << size;
  }
  EXPECT_FALSE(is_torn_log_header(header));
  EXPECT_FALSE(is_torn_log_header(bytes_of("#!/bin/sh")));
  EXPECT_FALSE(is_torn_log_header(bytes_of("l0ckstep")));
}

TEST(FileLog, AnotherProgramsFileIsRefused) {
  const std::string text(kLogHeaderSize, '#');
  EXPECT_THAT(parse_log_header(bytes_of(text)), StatusIs(Code::kInvalid, HasSubstr("not a Lockstep store")));
}

TEST(FileLog, EveryFlippedBitOfAHeaderIsSeen) {
  auto header = encode_log_header(identity_of(7));
  for (std::size_t bit = 0; bit < header.size() * 8; ++bit) {
    header[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_THAT(parse_log_header(header), StatusIs(Code::kInvalid)) << bit;
    header[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

TEST(FileLog, ALaterVersionIsNamedWithOurs) {
  Buffer header;
  base::ByteWriter writer(header);
  writer.raw(ByteView(encode_log_header(identity_of(7))).first(8));
  writer.integer(kLogVersion + 1);
  writer.raw(identity_of(7));
  writer.integer(base::crc32c(header));
  const auto parsed = parse_log_header(header);
  EXPECT_THAT(parsed, StatusIs(Code::kUnsupported, HasSubstr("version 2")));
  EXPECT_THAT(parsed, FailureIs(Failure::kVersionMismatch));
}

TEST(FileLog, EveryKindOfRecordComesBack) {
  Buffer log;
  for (const LogRecord& record : records()) ASSERT_OK(encode_record(record, log));
  ByteView rest = log;
  for (const LogRecord& record : records()) {
    const ParsedRecord parsed = parse_record(rest);
    ASSERT_EQ(parsed.kind, Kind::kWhole);
    EXPECT_EQ(parsed.record.op, record.op);
    ASSERT_EQ(parsed.record.entries.size(), record.entries.size());
    for (std::size_t i = 0; i < record.entries.size(); ++i) {
      EXPECT_EQ(parsed.record.entries[i].name, record.entries[i].name);
      EXPECT_EQ(text_of(parsed.record.entries[i].value), text_of(record.entries[i].value));
    }
    rest = rest.subspan(parsed.size);
  }
  EXPECT_TRUE(rest.empty());
}

TEST(FileLog, EveryBeginningOfARecordIsTorn) {
  for (const LogRecord& record : records()) {
    const Buffer bytes = encoded(record);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const ParsedRecord parsed = parse_record(ByteView(bytes).first(size));
      EXPECT_EQ(parsed.kind, Kind::kTorn) << size;
      EXPECT_GT(parsed.size, size);
      EXPECT_LE(parsed.size, bytes.size());
    }
  }
}

TEST(FileLog, EveryFlippedBitOfARecordIsDamage) {
  for (const LogRecord& record : records()) {
    Buffer bytes = encoded(record);
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_EQ(parse_record(bytes).kind, Kind::kDamaged) << bit;
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
  }
}

// Checksums that fit do not make a record.
TEST(FileLog, ABodyThatIsNoRecordIsDamage) {
  const auto with_body = [](ByteView body) {
    Buffer out;
    base::ByteWriter writer(out);
    writer.integer(static_cast<std::uint32_t>(body.size()));
    writer.integer(base::crc32c(body));
    writer.integer(base::crc32c(out));
    writer.raw(body);
    return out;
  };
  const std::string long_name(kMaxKeySize + 1, 'k');
  const auto sized = [](const std::string& text) {
    Buffer out;
    base::ByteWriter(out).sized(text);
    return std::string(text_of(out));
  };
  for (const std::string& body : {
           std::string(),                           // no op
           std::string("\x09"),                     // an unknown one
           std::string("\x01"),                     // a set of nothing
           "\x01" + sized("key"),                   // a value is missing
           "\x01" + sized("") + sized("value"),     // an empty key
           "\x02" + sized(long_name),               // a key that is too long
           "\x02" + sized("a") + sized("b"),        // two where one is due
           "\x06" + sized("a"),                     // one where none is due
           "\x02" + sized("a") + "\xff",            // something left over
           std::string("\x02\xff\xff\xff\xff", 5),  // a length beyond the end
       }) {
    EXPECT_EQ(parse_record(with_body(bytes_of(body))).kind, Kind::kDamaged) << ::testing::PrintToString(body);
  }
}

TEST(FileLog, ARecordThatIsTooLargeIsNotMade) {
  const Buffer value(kMaxValueSize);
  LogRecord record;
  for (std::size_t i = 0; i <= kMaxRecordSize / kMaxValueSize; ++i) record.entries.push_back({"key", value});
  Buffer out = buffer_of("kept");
  EXPECT_THAT(encode_record(record, out), FailureIs(Failure::kLimitExceeded));
  EXPECT_EQ(text_of(out), "kept");
}

TEST(FileLog, RecordsMakeTheState) {
  KeyValues state;
  for (const LogRecord& record : records()) ASSERT_OK(apply_record(record, state));
  EXPECT_EQ(state.num_keys(), 3);
  EXPECT_EQ(text_of(*state.get("a")), "1more");
  EXPECT_EQ(state.queue_len("queue"), 0);
}

TEST(FileLog, ARecordThatContradictsTheStateIsDamage) {
  KeyValues state;
  EXPECT_THAT(apply_record({LogOp::kDelete, {{"key", {}}}}, state), FailureIs(Failure::kCorruptFrame));
  EXPECT_THAT(apply_record({LogOp::kPop, {{"queue", {}}}}, state), FailureIs(Failure::kCorruptFrame));
  EXPECT_THAT(apply_record({LogOp::kSet, {}}, state), FailureIs(Failure::kCorruptFrame));
}

}  // namespace
}  // namespace lockstep::store
