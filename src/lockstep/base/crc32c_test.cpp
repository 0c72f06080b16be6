#include "lockstep/base/crc32c.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "lockstep/base/crc32c_paths.h"

namespace lockstep::base {
namespace {

// Every path that this processor can run.
std::vector<Crc32cPath> paths() {
  std::vector<Crc32cPath> out{&crc32c_by_table, &crc32c};
  if (crc32c_by_instruction() != nullptr) out.push_back(crc32c_by_instruction());
  return out;
}

// Bit by bit, as the definition says.
std::uint32_t by_definition(ByteView data) {
  std::uint32_t crc = 0xffffffff;
  for (const std::byte byte : data) {
    crc ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1) * 0x82f63b78;
  }
  return ~crc;
}

Buffer random_data(std::size_t size) {
  std::mt19937 random(1);
  Buffer data(size);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random());
  return data;
}

TEST(Crc32c, AnswersOfRfc3720) {
  Buffer ascending, descending;
  for (int i = 0; i < 32; ++i) {
    ascending.push_back(static_cast<std::byte>(i));
    descending.push_back(static_cast<std::byte>(31 - i));
  }
  for (const Crc32cPath path : paths()) {
    EXPECT_EQ(path({}, 0), 0U);
    EXPECT_EQ(path(bytes_of("123456789"), 0), 0xe3069283U);
    EXPECT_EQ(path(Buffer(32), 0), 0x8a9136aaU);
    EXPECT_EQ(path(Buffer(32, std::byte{0xff}), 0), 0x62a8ab43U);
    EXPECT_EQ(path(ascending, 0), 0x46dd794eU);
    EXPECT_EQ(path(descending, 0), 0x113fdb5cU);
  }
}

TEST(Crc32c, EveryPathFollowsTheDefinitionAtEverySizeAndAlignment) {
  const Buffer data = random_data(3000);
  for (std::size_t offset = 0; offset < 9; ++offset) {
    for (std::size_t size = 0; size < 2000; size += size < 100 ? 1 : 37) {
      const ByteView part = ByteView(data).subspan(offset, size);
      const std::uint32_t expected = by_definition(part);
      for (const Crc32cPath path : paths()) ASSERT_EQ(path(part, 0), expected) << offset << " " << size;
    }
  }
}

TEST(Crc32c, EveryPathAgreesOnBigBlocks) {
  const Buffer data = random_data(200'000);
  for (const std::size_t size :
       {3U * 256, 3U * 256 - 1, 3U * 4096, 3U * 4096 + 3 * 256 + 9, 65'536U, 199'990U}) {
    for (const std::size_t offset : {0U, 1U, 7U}) {
      const ByteView part = ByteView(data).subspan(offset, size);
      const std::uint32_t expected = by_definition(part);
      for (const Crc32cPath path : paths()) EXPECT_EQ(path(part, 0), expected) << offset << " " << size;
    }
  }
}

TEST(Crc32c, ContinuesWhereItStopped) {
  const Buffer data = random_data(50'000);
  for (const Crc32cPath path : paths()) {
    for (const std::size_t cut : {0U, 1U, 8U, 1000U, 12'345U, 50'000U}) {
      const ByteView all(data);
      EXPECT_EQ(path(all.subspan(cut), path(all.first(cut), 0)), path(all, 0)) << cut;
    }
  }
}

TEST(Crc32c, EverySingleBitFlipChangesIt) {
  Buffer data = random_data(100);
  const std::uint32_t before = crc32c(data);
  for (std::size_t bit = 0; bit < 8 * data.size(); ++bit) {
    data[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_NE(crc32c(data), before) << bit;
    data[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
}

}  // namespace
}  // namespace lockstep::base
