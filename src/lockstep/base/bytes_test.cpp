#include "lockstep/base/bytes.h"

#include <gtest/gtest.h>

#include "lockstep/base/unique_fd.h"

#include <fcntl.h>
#include <unistd.h>

namespace lockstep::base {
namespace {

TEST(Bytes, WriterAndReaderAgree) {
  Buffer buffer;
  ByteWriter writer(buffer);
  writer.integer<std::uint8_t>(7);
  writer.integer<std::uint64_t>(0x1122334455667788ULL);
  writer.integer<std::int16_t>(-2);
  writer.sized("key");
  writer.raw(bytes_of("xyz"));

  ByteReader reader(buffer);
  EXPECT_EQ(reader.integer<std::uint8_t>(), 7);
  EXPECT_EQ(reader.integer<std::uint64_t>(), 0x1122334455667788ULL);
  EXPECT_EQ(reader.integer<std::int16_t>(), -2);
  EXPECT_EQ(text_of(reader.sized(16)), "key");
  EXPECT_EQ(text_of(reader.take(3)), "xyz");
  EXPECT_TRUE(reader.complete());
}

TEST(Bytes, IntegersAreLittleEndian) {
  Buffer buffer;
  ByteWriter(buffer).integer<std::uint32_t>(0x01020304);
  EXPECT_EQ(hex(buffer), "04030201");
}

TEST(Bytes, ReaderFailsOnceAndForAll) {
  const Buffer buffer = buffer_of("abc");
  ByteReader reader(buffer);
  EXPECT_EQ(reader.integer<std::uint32_t>(), 0U);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.integer<std::uint8_t>(), 0);
  EXPECT_TRUE(reader.take(1).empty());
  EXPECT_FALSE(reader.complete());
}

TEST(Bytes, SizedRefusesALengthAboveItsLimitOrTheRest) {
  for (const std::uint32_t claimed : {4U, 17U, 0x7fffffffU, 0xffffffffU}) {
    Buffer buffer;
    ByteWriter writer(buffer);
    writer.integer(claimed);
    writer.raw(bytes_of("abc"));
    ByteReader reader(buffer);
    EXPECT_TRUE(reader.sized(16).empty()) << claimed;
    EXPECT_FALSE(reader.ok()) << claimed;
  }
}

TEST(Bytes, CompleteNeedsNothingLeftOver) {
  const Buffer buffer = buffer_of("ab");
  ByteReader reader(buffer);
  (void)reader.integer<std::uint8_t>();
  EXPECT_TRUE(reader.ok());
  EXPECT_FALSE(reader.complete());
  EXPECT_EQ(reader.left(), 1U);
}

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(UniqueFd, ClosesOnceAndOnlyWhatItOwns) {
  const int raw = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  UniqueFd first(raw);
  UniqueFd second(std::move(first));
  EXPECT_FALSE(first);
  EXPECT_TRUE(is_open(raw));
  const int released = second.release();
  second.reset();
  EXPECT_TRUE(is_open(released));
  UniqueFd third(released);
  third = UniqueFd();
  EXPECT_FALSE(is_open(released));
}

}  // namespace
}  // namespace lockstep::base
