#include "lockstep/transport/tcp/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "lockstep/testing/status_matchers.h"

namespace lockstep::transport::tcp {
namespace {

using lockstep::testing::FailureIs;
using lockstep::testing::StatusIs;
using ::testing::AnyOf;

constexpr base::SealKey kKey{std::byte{7}, std::byte{9}};

struct Protected {
  const char* name;
  std::uint64_t first;  // the number of the first record
  std::unique_ptr<RecordWriter> (*writer)();
  std::unique_ptr<RecordReader> (*reader)();
};
void PrintTo(const Protected& value, std::ostream* out) { *out << value.name; }

class RecordTest : public ::testing::TestWithParam<Protected> {
 protected:
  std::unique_ptr<RecordWriter> writer_ = GetParam().writer();
  std::unique_ptr<RecordReader> reader_ = GetParam().reader();

  // All that comes out of `bytes`, handed over in portions.
  static Result<Buffer> read(RecordReader& reader, ByteView bytes, std::size_t portion) {
    Buffer out;
    while (true) {
      LOCKSTEP_ASSIGN(const auto record, reader.next());
      if (record) {
        out.push_back(static_cast<std::byte>(record->kind));
        out.insert(out.end(), record->payload.begin(), record->payload.end());
        continue;
      }
      if (bytes.empty()) return out;
      const ByteSpan space = reader.space();
      const std::size_t count = std::min({portion, space.size(), bytes.size()});
      std::memcpy(space.data(), bytes.data(), count);
      reader.received(count);
      bytes = bytes.subspan(count);
    }
  }
};

TEST_P(RecordTest, RecordsComeOutAsTheyWentInWhateverThePortions) {
  Buffer wire;
  Buffer expected;
  for (const std::size_t size : {1U, 5U, 4096U, 65536U, 3U}) {
    const Buffer payload(size, static_cast<std::byte>(size));
    writer_->write(wire, RecordKind::kData, payload);
    expected.push_back(static_cast<std::byte>(RecordKind::kData));
    expected.insert(expected.end(), payload.begin(), payload.end());
  }
  writer_->write(wire, RecordKind::kGoodbye, {});
  expected.push_back(static_cast<std::byte>(RecordKind::kGoodbye));
  for (const std::size_t portion : {1U, 2U, 1000U, 1'000'000U}) {
    const auto reader = GetParam().reader();
    ASSERT_OK_AND_ASSIGN(const Buffer got, read(*reader, wire, portion));
    EXPECT_TRUE(got == expected) << "in portions of " << portion;
  }
}

// F10 in small: no flipped bit is ever taken for data, wherever it is. A flipped length may make the reader
// wait for more; then it has given out nothing of that record.
TEST_P(RecordTest, EveryFlippedBitIsNoticed) {
  Buffer wire;
  const Buffer payload = Buffer(200, std::byte{42});
  writer_->write(wire, RecordKind::kData, payload);
  const std::size_t first = wire.size();
  for (int i = 0; i < 3; ++i) writer_->write(wire, RecordKind::kData, payload);
  std::mt19937_64 random(1);
  int waits = 0;
  for (int flip = 0; flip < 10'000; ++flip) {
    const std::uint64_t bit = random() % (8 * wire.size());
    Buffer damaged = wire;
    damaged[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    const auto reader = GetParam().reader();
    const auto got = read(*reader, damaged, 100'000);
    if (got.ok()) {
      ++waits;
      EXPECT_LE(got->size(), bit / 8 / first * 201) << "bit " << bit;
    } else {
      EXPECT_THAT(got.status(), StatusIs(Code::kDisconnected));
      EXPECT_THAT(got.status(), AnyOf(FailureIs(Failure::kCorruptFrame), FailureIs(Failure::kLimitExceeded)));
      EXPECT_EQ(got.status().cause().sequence, GetParam().first + bit / 8 / first);
    }
  }
  // Only a length can do that.
  EXPECT_LT(waits, 10'000 * 4 * 3 * 2 / static_cast<int>(first));
}

TEST_P(RecordTest, ARepeatedOrDroppedRecordIsNoticed) {
  Buffer first;
  Buffer second;
  writer_->write(first, RecordKind::kData, Buffer(10));
  writer_->write(second, RecordKind::kData, Buffer(10));
  Buffer repeated = first;
  repeated.insert(repeated.end(), first.begin(), first.end());
  EXPECT_THAT(read(*reader_, repeated, 1000), FailureIs(Failure::kCorruptFrame));
  EXPECT_THAT(read(*GetParam().reader(), second, 1000), FailureIs(Failure::kCorruptFrame));
}

// F15.
TEST_P(RecordTest, LengthsOutsideOfTheLimitsAreRefusedBeforeAnythingIsMadeOfThem) {
  for (const std::uint32_t length : {0U, 65538U, 0x7fffffffU, 0x80000000U, 0xffffffffU}) {
    Buffer wire;
    base::ByteWriter(wire).integer(length);
    EXPECT_THAT(read(*GetParam().reader(), wire, 1000), FailureIs(Failure::kLimitExceeded)) << length;
  }
}

INSTANTIATE_TEST_SUITE_P(Records, RecordTest,
                         ::testing::Values(Protected{"Sealed", 0, [] { return sealed_writer(kKey); },
                                                     [] { return sealed_reader(kKey); }},
                                           Protected{"Checked", 1, [] { return checked_writer(1); },
                                                     [] { return checked_reader(1); }}),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(ParseRecord, TakesOnlyWhatTheGrammarAllows) {
  const auto body = [](int kind, std::size_t size) {
    Buffer bytes(1 + size);
    bytes[0] = static_cast<std::byte>(kind);
    return bytes;
  };
  EXPECT_OK(parse_record(body(1, kIntroductionSize)));
  EXPECT_OK(parse_record(body(2, 1)));
  EXPECT_OK(parse_record(body(2, kMaxPayload)));
  EXPECT_OK(parse_record(body(3, 0)));
  for (const auto& [kind, size] : {std::pair{0, 1UL},
                                   {1, 8UL},
                                   {1, 10UL},
                                   {2, 0UL},
                                   {2, kMaxPayload + 1},
                                   {3, 1UL},
                                   {4, 0UL},
                                   {255, 1UL}}) {
    EXPECT_THAT(parse_record(body(kind, size)), FailureIs(Failure::kCorruptFrame)) << kind << ", " << size;
  }
  EXPECT_THAT(parse_record({}), FailureIs(Failure::kCorruptFrame));
}

}  // namespace
}  // namespace lockstep::transport::tcp

namespace lockstep::transport {
namespace {

using lockstep::testing::FailureIs;
using lockstep::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Introduction, ComesOutAsItWentIn) {
  for (const Introduction& introduction :
       {Introduction{},
        Introduction{.protection = Protection::kIntegrity, .rank = Rank(6), .world = WorldSize(7)}}) {
    const Buffer bytes = introduction_bytes(introduction);
    EXPECT_EQ(bytes.size(), kIntroductionSize);
    ASSERT_OK_AND_ASSIGN(const auto parsed, parse_introduction(bytes));
    EXPECT_EQ(parsed, introduction);
  }
}

TEST(Introduction, NonsenseIsRefused) {
  const auto with = [](std::uint8_t protection, std::uint32_t rank, std::uint32_t world) {
    Buffer bytes;
    base::ByteWriter writer(bytes);
    writer.integer(protection);
    writer.integer(rank);
    writer.integer(world);
    return parse_introduction(bytes);
  };
  EXPECT_OK(with(1, 0, 1));
  EXPECT_FALSE(with(0, 0, 1).ok());
  EXPECT_FALSE(with(3, 0, 1).ok());
  EXPECT_FALSE(with(1, 1, 1).ok());
  EXPECT_FALSE(with(1, 0, 0).ok());
  EXPECT_FALSE(with(1, 0, 0x80000000U).ok());
  EXPECT_FALSE(parse_introduction(Buffer(8)).ok());
  EXPECT_FALSE(parse_introduction(Buffer(10)).ok());
}

TEST(Introduction, BothValuesAreInTheText) {
  const Introduction own{.rank = Rank(0), .world = WorldSize(4)};
  EXPECT_OK(judge_introduction(own, {.rank = Rank(3), .world = WorldSize(4)}, Rank(3)));
  EXPECT_OK(judge_introduction(own, {.world = WorldSize(4)}, {}));
  EXPECT_THAT(judge_introduction(own, {.rank = Rank(1), .world = WorldSize(8)}, {}),
              StatusIs(Code::kInvalid, AllOf(HasSubstr("world of 4"), HasSubstr("world of 8"))));
  EXPECT_THAT(judge_introduction(
                  own, {.protection = Protection::kIntegrity, .rank = Rank(1), .world = WorldSize(4)}, {}),
              StatusIs(Code::kInvalid, AllOf(HasSubstr("`sealed`"), HasSubstr("`integrity`"))));
  EXPECT_THAT(judge_introduction(own, {.rank = Rank(1), .world = WorldSize(4)}, Rank(2)),
              StatusIs(Code::kDisconnected, AllOf(HasSubstr("rank 1"), HasSubstr("rank 2"))));
}

}  // namespace
}  // namespace lockstep::transport
