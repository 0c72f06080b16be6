#include "lockstep/store/tcp_frame.h"

#include <gmock/gmock.h>

#include <cstring>
#include <new>
#include <random>

#include "lockstep/testing/status_matchers.h"

namespace lockstep::store {
namespace {

using ::lockstep::testing::FailureIs;

constexpr std::size_t kLimit = 1U << 20;

base::SealKey test_key() {
  base::SealKey key;
  key.fill(std::byte{42});
  return key;
}

Buffer random_message(std::size_t size) {
  std::mt19937 random(static_cast<unsigned>(size));
  Buffer message(size);
  for (std::byte& byte : message) byte = static_cast<std::byte>(random());
  return message;
}

void write_frame(FrameWriter& writer, ByteView message, Buffer& out) {
  writer.write(out, [&](Buffer& to) { to.insert(to.end(), message.begin(), message.end()); });
}

// Hands `bytes` over in pieces of at most `piece` and returns the messages that come out.
Result<std::vector<Buffer>> read_all(FrameReader& reader, ByteView bytes, std::size_t piece) {
  std::vector<Buffer> messages;
  while (!bytes.empty()) {
    const ByteSpan space = reader.space();
    const std::size_t count = std::min({piece, space.size(), bytes.size()});
    std::memcpy(space.data(), bytes.data(), count);
    reader.received(count);
    bytes = bytes.subspan(count);
    while (true) {
      LOCKSTEP_ASSIGN(const auto message, reader.next());
      if (!message) break;
      messages.emplace_back(message->begin(), message->end());
    }
  }
  return messages;
}

TEST(TcpFrame, MessagesComeOutAsTheyWentInHoweverTheyAreCut) {
  const std::vector<Buffer> messages = {random_message(1),         random_message(20),
                                        random_message(16U << 10), random_message(300'000),
                                        random_message(3),         random_message(kLimit)};
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, std::size_t{4096}, std::size_t{1} << 30}) {
    FrameWriter writer(test_key());
    Buffer stream;
    // A megabyte byte by byte would only take long.
    const std::size_t count = piece == 1 ? 3 : messages.size();
    for (std::size_t i = 0; i < count; ++i) write_frame(writer, messages[i], stream);
    FrameReader reader(test_key(), kLimit);
    ASSERT_OK_AND_ASSIGN(const auto read, read_all(reader, stream, piece));
    EXPECT_EQ(read,
              std::vector<Buffer>(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(count)));
  }
}

// F15.
TEST(TcpFrame, LengthsBeyondTheLimitAreRefusedBeforeAnyMemoryIsMade) {
  for (const std::uint32_t length : {0U, static_cast<std::uint32_t>(kLimit) + 1, 0x7fffffffU, 0xffffffffU}) {
    FrameReader reader(test_key(), kLimit);
    Buffer header(4);
    std::memcpy(header.data(), &length, 4);
    EXPECT_THAT(read_all(reader, header, 4), FailureIs(Failure::kLimitExceeded));
    EXPECT_LE(reader.memory(), 16U << 10);
  }
}

TEST(TcpFrame, MemoryFollowsWhatHasComeNotWhatWasAnnounced) {
  FrameReader reader(test_key(), std::size_t{1} << 30);
  const std::uint32_t length = 1U << 30;
  Buffer start(100'000);
  std::memcpy(start.data(), &length, 4);
  ASSERT_OK(read_all(reader, start, 4096));
  EXPECT_LE(reader.memory(), 2 * start.size() + (16U << 10));
}

TEST(TcpFrame, ALargeMessageLeavesNoLargeBufferBehind) {
  FrameWriter writer(test_key());
  Buffer stream;
  write_frame(writer, random_message(kLimit), stream);
  FrameReader reader(test_key(), kLimit);
  ASSERT_OK(read_all(reader, stream, 1U << 30));
  static_cast<void>(reader.space());
  EXPECT_LE(reader.memory(), 16U << 10);
}

// F10, for the store's frames: any bit that flips is noticed.
TEST(TcpFrame, EveryFlippedBitIsNoticed) {
  FrameWriter writer(test_key());
  Buffer stream;
  write_frame(writer, random_message(32), stream);
  for (std::size_t bit = 0; bit < stream.size() * 8; ++bit) {
    Buffer flipped = stream;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    FrameReader reader(test_key(), kLimit);
    const auto read = read_all(reader, flipped, 1U << 30);
    // A length that has grown waits for bytes that never come; nothing is given out in any case.
    EXPECT_TRUE(!read.ok() || read->empty()) << bit;
  }
}

TEST(TcpFrame, RepeatedDroppedAndReorderedFramesAreNoticed) {
  FrameWriter writer(test_key());
  Buffer first;
  Buffer second;
  write_frame(writer, random_message(32), first);
  write_frame(writer, random_message(32), second);
  const auto joined = [](const Buffer& a, const Buffer& b) {
    Buffer out = a;
    out.insert(out.end(), b.begin(), b.end());
    return out;
  };
  for (const Buffer& stream : {joined(first, first), joined(second, first), second}) {
    FrameReader reader(test_key(), kLimit);
    EXPECT_THAT(read_all(reader, stream, 1U << 30), FailureIs(Failure::kCorruptFrame));
  }
}

// F27.
TEST(TcpFrame, WithoutMemoryForAMessageTheStreamIsAsBefore) {
  FrameWriter writer(test_key());
  Buffer stream;
  write_frame(writer, random_message(5), stream);
  const Buffer before = stream;
  EXPECT_THROW(writer.write(stream,
                            [](Buffer& to) {
                              to.push_back(std::byte{1});
                              throw std::bad_alloc();
                            }),
               std::bad_alloc);
  EXPECT_EQ(stream, before);
  write_frame(writer, random_message(6), stream);
  FrameReader reader(test_key(), kLimit);
  ASSERT_OK_AND_ASSIGN(const auto read, read_all(reader, stream, 1U << 30));
  EXPECT_EQ(read.size(), 2U);
}

}  // namespace
}  // namespace lockstep::store
