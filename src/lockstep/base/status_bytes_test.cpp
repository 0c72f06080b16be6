#include "lockstep/base/status_bytes.h"

#include <gtest/gtest.h>

namespace lockstep::base {
namespace {

const Cause kCause{.failure = Failure::kPeerDied,
                   .rank = Rank{1},
                   .peer = Rank{3},
                   .op = "all_reduce",
                   .sequence = 418,
                   .group = "world",
                   .host = "node7",
                   .pid = 4711,
                   .missing = {Rank{3}, Rank{5}}};

TEST(StatusBytes, CarryTheWholeError) {
  const Status sent = Status::disconnected("rank 3 died", kCause);
  const Status got = parse_status(write_status(sent));
  EXPECT_EQ(got.code(), Code::kDisconnected);
  EXPECT_EQ(got.message(), "rank 3 died");
  EXPECT_EQ(got.cause(), kCause);
}

TEST(StatusBytes, AreNeverLongerThanTheirLimit) {
  Cause cause = kCause;
  cause.op = cause.group = cause.host = std::string(5000, 'x');
  for (int i = 0; i < 1000; ++i) cause.missing.emplace_back(i);
  const Buffer bytes = write_status(Status::timeout(std::string(9000, 'y'), cause));
  EXPECT_LE(bytes.size(), kMaxStatusSize);
  EXPECT_EQ(parse_status(bytes).code(), Code::kTimeout);
}

TEST(StatusBytes, ThatAreCutOrChangedInTheirFormAreReportedAsSuch) {
  const Buffer whole = write_status(Status::disconnected("rank 3 died", kCause));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_EQ(parse_status(ByteView(whole).first(size)).failure(), Failure::kCorruptFrame) << size;
  }
  Buffer ok = whole;
  ok[0] = std::byte{0};
  EXPECT_EQ(parse_status(ok).failure(), Failure::kCorruptFrame);
  Buffer longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_EQ(parse_status(longer).failure(), Failure::kCorruptFrame);
}

}  // namespace
}  // namespace lockstep::base
