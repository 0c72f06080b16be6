#include "lockstep/transport/link/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "lockstep/base/crc32c.h"
#include "lockstep/testing/status_matchers.h"
#include "lockstep/transport/link/errand.h"

namespace lockstep::transport::link {
namespace {

using lockstep::testing::StatusIs;

constexpr std::size_t kSizeAt = 8;
constexpr std::size_t kChecked = kHeaderSize - 4;

Frame example() {
  Frame frame{.more = true,
              .size = 4711,
              .part = 3,
              .payload_crc = 0x12345678,
              .age = std::chrono::milliseconds(20'000)};
  for (std::size_t i = 0; i < kStampSize; ++i) frame.stamp[i] = static_cast<std::byte>(i + 1);
  return frame;
}

TEST(LinkFrame, ComesBackAsItWas) {
  const Frame frame = example();
  const auto back = parse_header(write_header(frame));
  ASSERT_OK(back.status());
  EXPECT_EQ(write_header(*back), write_header(frame));
  EXPECT_EQ(back->size, 4711U);
  EXPECT_EQ(back->stamp, frame.stamp);
  EXPECT_EQ(back->age, frame.age);
}

TEST(LinkFrame, AnAgeBeyondTheLongestIsTheLongest) {
  Frame frame = example();
  frame.age = std::chrono::hours(1);
  EXPECT_EQ(parse_header(write_header(frame)).value().age, kLongestAge);
}

TEST(LinkFrame, EveryBitOfAHeaderCounts) {
  for (std::size_t bit = 0; bit < kHeaderSize * 8; ++bit) {
    Header header = write_header(example());
    header[bit / 8] ^= std::byte{1} << (bit % 8);
    ASSERT_EQ(parse_header(header).status().failure(), Failure::kCorruptFrame) << "bit " << bit;
  }
}

// The checksum is right: whoever sent it means it.
TEST(LinkFrame, ASizeThatNoFrameHasIsRefused) {
  for (const std::uint32_t size :
       {static_cast<std::uint32_t>(kMaxPayload) + 1, 0x7fffffffU, 0x80000000U, 0xffffffffU}) {
    Header header = write_header(example());
    std::memcpy(header.data() + kSizeAt, &size, sizeof(size));
    const std::uint32_t crc = base::crc32c(ByteView(header).first(kChecked));
    std::memcpy(header.data() + kChecked, &crc, sizeof(crc));
    const Status status = parse_header(header).status();
    EXPECT_THAT(status, StatusIs(Code::kDisconnected)) << size;
    EXPECT_EQ(status.failure(), Failure::kLimitExceeded) << size;
  }
  for (const std::uint32_t size : {0U, static_cast<std::uint32_t>(kMaxPayload)}) {
    Frame frame = example();
    frame.size = size;
    EXPECT_OK(parse_header(write_header(frame)).status());
  }
}

TEST(Errand, EveryBitCounts) {
  const Errand errand{.kind = ErrandKind::kNews, .group = 0x0123456789abcdef, .stream = 77};
  EXPECT_EQ(parse_errand(write_errand(errand)).value(), errand);
  for (std::size_t bit = 0; bit < kErrandSize * 8; ++bit) {
    auto bytes = write_errand(errand);
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    ASSERT_EQ(parse_errand(bytes).status().failure(), Failure::kCorruptFrame) << "bit " << bit;
  }
}

}  // namespace
}  // namespace lockstep::transport::link
