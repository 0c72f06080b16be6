#include "lockstep/transport/messages/frame.h"

#include <limits>

#include "lockstep/testing/status_matchers.h"
#include "lockstep/transport/messages/messenger.h"

namespace lockstep::transport::messages {
namespace {

using testing::FailureIs;
using ::testing::HasSubstr;
using testing::IsOkAnd;
using testing::StatusIs;

Buffer bytes_of_frame(const Frame& frame) {
  Buffer bytes;
  append_frame(bytes, frame);
  return bytes;
}

TEST(Frame, ComesBackAsItWas) {
  const std::vector<Frame> frames{
      {.kind = FrameKind::kHello},
      {.kind = FrameKind::kYield, .credit = 7},
      {.kind = FrameKind::kEager, .credit = 0xffffffff, .group = 1, .tag = 2, .id = 3, .size = kEagerLimit},
      {.kind = FrameKind::kAsk, .group = ~0ULL, .tag = ~0ULL, .id = ~0ULL, .size = kMessageLimit},
      {.kind = FrameKind::kGo, .id = 1},
      {.kind = FrameKind::kData, .id = 1, .size = kPieceLimit},
      {.kind = FrameKind::kAbandon, .refusal = Refusal::kFailed, .group = 4, .tag = 5, .id = 6},
      {.kind = FrameKind::kRefuse,
       .refusal = Refusal::kSize,
       .group = 4,
       .tag = 5,
       .id = 6,
       .size = 7,
       .room = 8},
      {.kind = FrameKind::kRefuse, .refusal = Refusal::kGroup, .id = 6, .size = 7},
      {.kind = FrameKind::kCredit, .credit = 9},
      {.kind = FrameKind::kOffer, .group = 4, .tag = 5, .id = 6, .size = 7, .room = 8},
      {.kind = FrameKind::kTaken, .group = 4, .tag = 5, .id = 6},
      {.kind = FrameKind::kWatch, .group = 4},
      {.kind = FrameKind::kLeft, .refusal = Refusal::kGroup, .group = 4},
  };
  for (const Frame& frame : frames) {
    const Buffer bytes = bytes_of_frame(frame);
    EXPECT_EQ(bytes.size(), kFrameSize);
    EXPECT_THAT(parse_frame(bytes), IsOkAnd(frame));
  }
}

TEST(Frame, TheBytesAreThoseOfTheGrammar) {
  const Buffer bytes = bytes_of_frame({.kind = FrameKind::kRefuse,
                                       .refusal = Refusal::kSize,
                                       .credit = 0x01020304,
                                       .group = 5,
                                       .tag = 6,
                                       .id = 7,
                                       .size = 8,
                                       .room = 9});
  EXPECT_EQ(base::hex(bytes),
            "0801000004030201"
            "0500000000000000"
            "0600000000000000"
            "0700000000000000"
            "0800000000000000"
            "0900000000000000");
}

TEST(Frame, WhatDoesNotFollowTheGrammarIsTyped) {
  const std::vector<Frame> frames{
      {.kind = static_cast<FrameKind>(0)},
      {.kind = static_cast<FrameKind>(14)},
      {.kind = FrameKind::kWatch, .refusal = Refusal::kGroup, .group = 1},
      {.kind = FrameKind::kWatch, .group = 1, .id = 1},
      {.kind = FrameKind::kLeft, .group = 1},
      {.kind = FrameKind::kLeft, .refusal = Refusal::kWithdrawn, .group = 1},
      {.kind = FrameKind::kLeft, .refusal = Refusal::kGroup, .group = 1, .tag = 1},
      {.kind = FrameKind::kTaken, .id = 1, .room = 1},
      {.kind = FrameKind::kOffer, .size = 1},
      {.kind = FrameKind::kHello, .group = 1},
      {.kind = FrameKind::kCredit, .size = 1},
      {.kind = FrameKind::kEager, .refusal = Refusal::kSize, .id = 1},
      {.kind = FrameKind::kEager, .id = 0},
      {.kind = FrameKind::kEager, .id = 1, .room = 1},
      {.kind = FrameKind::kGo, .id = 1, .size = 1},
      {.kind = FrameKind::kData, .id = 1, .size = 0},
      {.kind = FrameKind::kRefuse, .id = 1},
      {.kind = FrameKind::kRefuse, .refusal = static_cast<Refusal>(5), .id = 1},
      {.kind = FrameKind::kAbandon, .refusal = Refusal::kSize, .id = 1},
      {.kind = FrameKind::kAbandon, .id = 1},
      {.kind = FrameKind::kRefuse, .refusal = Refusal::kGroup, .id = 1, .room = 1},
  };
  for (const Frame& frame : frames) {
    const auto parsed = parse_frame(bytes_of_frame(frame));
    EXPECT_THAT(parsed, StatusIs(Code::kDisconnected)) << base::hex(bytes_of_frame(frame));
    EXPECT_THAT(parsed, FailureIs(Failure::kCorruptFrame));
  }
  Buffer bytes = bytes_of_frame({});
  bytes[2] = std::byte{1};
  EXPECT_THAT(parse_frame(bytes), FailureIs(Failure::kCorruptFrame));
  bytes = bytes_of_frame({});
  EXPECT_THAT(parse_frame(ByteView(bytes).first(kFrameSize - 1)), FailureIs(Failure::kCorruptFrame));
}

TEST(Frame, SizesAboveTheirLimitAreTyped) {
  for (const std::uint64_t size :
       {kMessageLimit + 1, std::uint64_t{1} << 62, std::numeric_limits<std::uint64_t>::max()}) {
    for (const FrameKind kind : {FrameKind::kEager, FrameKind::kAsk, FrameKind::kData}) {
      const auto parsed = parse_frame(bytes_of_frame({.kind = kind, .id = 1, .size = size}));
      EXPECT_THAT(parsed, FailureIs(Failure::kLimitExceeded));
    }
    EXPECT_THAT(parse_frame(bytes_of_frame(
                    {.kind = FrameKind::kRefuse, .refusal = Refusal::kSize, .id = 1, .room = size})),
                FailureIs(Failure::kLimitExceeded));
  }
  EXPECT_THAT(parse_frame(bytes_of_frame({.kind = FrameKind::kEager, .id = 1, .size = kEagerLimit + 1})),
              StatusIs(Code::kDisconnected, HasSubstr("64.0 KiB")));
  EXPECT_THAT(parse_frame(bytes_of_frame({.kind = FrameKind::kData, .id = 1, .size = kPieceLimit + 1})),
              FailureIs(Failure::kLimitExceeded));
}

}  // namespace
}  // namespace lockstep::transport::messages
