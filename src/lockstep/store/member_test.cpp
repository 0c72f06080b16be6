#include "lockstep/store/member.h"

#include "lockstep/base/handshake.h"
#include "lockstep/base/text.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::store {
namespace {

using testing::FailureIs;
using ::testing::HasSubstr;
using testing::IsOkAnd;
using testing::StatusIs;

Member member(int rank, int host) {
  Member out;
  out.rank = Rank{rank};
  out.pid = 100 + rank;
  out.start_time = 7000U + static_cast<unsigned>(rank);
  out.nonce.fill(std::byte(rank + 1));
  out.host = {cat("node", host), cat("boot-", host), 1, 2, 3};
  out.addresses = {*base::SocketAddress::parse(cat("10.0.0.", host + 1), 0),
                   *base::SocketAddress::parse("fd00::1", 0)};
  return out;
}

MemberRecord record(int rank) {
  return {base::kWireVersion, WorldSize{4}, SecretFrom::kGiven, member(rank, 0)};
}

TEST(MemberRecord, ComesBackAsItWasWritten) {
  EXPECT_THAT(parse_member(write_member(record(3))), IsOkAnd(record(3)));
}

TEST(MemberRecord, OfAnotherVersionStillSaysWhoItIs) {
  MemberRecord newer = record(2);
  newer.version = base::kWireVersion + 1;
  Buffer bytes = write_member(newer);
  bytes.push_back(std::byte{9});  // a field that this version does not know
  ASSERT_OK_AND_ASSIGN(const MemberRecord back, parse_member(bytes));
  EXPECT_EQ(back.version, base::kWireVersion + 1);
  EXPECT_EQ(back.world_size, WorldSize{4});
  EXPECT_EQ(back.member.text(), "rank 2 (host node0, pid 102)");
}

TEST(MemberRecord, EveryTruncationAndEveryExtraByteIsRefused) {
  Buffer bytes = write_member(record(1));
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THAT(parse_member(ByteView(bytes).first(size)), FailureIs(Failure::kCorruptFrame)) << size;
  bytes.push_back(std::byte{0});
  EXPECT_THAT(parse_member(bytes), FailureIs(Failure::kCorruptFrame));
}

TEST(MemberRecord, NonsenseIsRefused) {
  MemberRecord outside = record(1);
  outside.member.rank = Rank{4};
  EXPECT_THAT(parse_member(write_member(outside)), FailureIs(Failure::kCorruptFrame));
  MemberRecord huge = record(1);
  huge.world_size = WorldSize{kMaxWorldSize + 1};
  EXPECT_THAT(parse_member(write_member(huge)), FailureIs(Failure::kCorruptFrame));
  EXPECT_THAT(parse_member(bytes_of("GET / HTTP/1.1\r\nHost: x\r\n\r\n")), FailureIs(Failure::kCorruptFrame));
}

TEST(JoinVerdict, AWorldComesBackWithEveryMember) {
  const Members members = {member(0, 0), member(1, 0), member(2, 1)};
  ASSERT_OK_AND_ASSIGN(const JoinVerdict verdict, parse_verdict(write_verdict(members)));
  EXPECT_EQ(std::get<Members>(verdict), members);
}

TEST(JoinVerdict, AHostIsWrittenOnceHoweverManyRanksItHas) {
  Members one = {member(0, 0)};
  Members eight;
  for (int rank = 0; rank < 8; ++rank) {
    eight.push_back(member(rank, 0));
  }
  const std::size_t per_rank = (write_verdict(eight).size() - write_verdict(one).size()) / 7;
  EXPECT_EQ(per_rank, 32U) << "place, pid, start time and nonce";
}

TEST(JoinVerdict, AWorldOfTheLargestSizeOnAsManyHostsFitsIntoOneValue) {
  Members members;
  for (int rank = 0; rank < kMaxWorldSize; ++rank) {
    members.push_back(member(rank % 200, rank % 250));
    members.back().rank = Rank{rank};
    members.back().host.boot_id = cat("0123abcd-0123-0123-0123-", 100'000'000'000 + rank);
  }
  const Buffer bytes = write_verdict(members);
  EXPECT_LE(bytes.size(), 8U << 20);
  ASSERT_OK_AND_ASSIGN(const JoinVerdict verdict, parse_verdict(bytes));
  EXPECT_EQ(std::get<Members>(verdict), members);
}

TEST(JoinVerdict, AFailureComesBackWithCodeMessageAndCause) {
  const Status failure = Status::timeout("ranks 1, 3 of 4 missing", {.failure = Failure::kMissingRanks,
                                                                     .rank = {},
                                                                     .peer = Rank{1},
                                                                     .op = {},
                                                                     .sequence = {},
                                                                     .group = {},
                                                                     .host = "node7",
                                                                     .pid = 4711,
                                                                     .missing = {Rank{1}, Rank{3}}});
  ASSERT_OK_AND_ASSIGN(const JoinVerdict verdict, parse_verdict(write_verdict(failure)));
  const Status& back = std::get<Status>(verdict);
  EXPECT_EQ(back.text(), failure.text());
  EXPECT_EQ(back.cause(), failure.cause());
}

TEST(JoinVerdict, AFailureWithoutAKindComesBackToo) {
  ASSERT_OK_AND_ASSIGN(const JoinVerdict verdict, parse_verdict(write_verdict(Status::internal("what"))));
  EXPECT_EQ(std::get<Status>(verdict).text(), Status::internal("what").text());
}

TEST(JoinVerdict, ClosedComesBack) {
  ASSERT_OK_AND_ASSIGN(const JoinVerdict verdict, parse_verdict(write_verdict(RoundClosed{})));
  EXPECT_TRUE(std::holds_alternative<RoundClosed>(verdict));
}

TEST(JoinVerdict, EveryTruncationAndEveryExtraByteIsRefused) {
  const Members members = {member(0, 0), member(1, 1)};
  for (Buffer bytes :
       {write_verdict(members), write_verdict(Status::aborted("over")), write_verdict(RoundClosed{})}) {
    for (std::size_t size = 0; size < bytes.size(); ++size)
      EXPECT_THAT(parse_verdict(ByteView(bytes).first(size)), FailureIs(Failure::kCorruptFrame)) << size;
    bytes.push_back(std::byte{0});
    EXPECT_THAT(parse_verdict(bytes), FailureIs(Failure::kCorruptFrame));
  }
}

TEST(JoinVerdict, CountsAreCheckedBeforeAnythingIsMadeOfThem) {
  Buffer world = write_verdict(Members{});
  std::fill(world.begin() + 7, world.begin() + 11, std::byte{0xff});  // the number of places
  EXPECT_THAT(parse_verdict(world), FailureIs(Failure::kCorruptFrame));
  Buffer failure = write_verdict(Status::aborted("over"));
  // kind, code, "none", peer, pid, host; then the number of missing ranks
  const std::size_t at = 7 + 1 + 4 + 4 + 4 + 4 + 4;
  std::fill_n(failure.begin() + at, 4, std::byte{0x7f});
  EXPECT_THAT(parse_verdict(failure), FailureIs(Failure::kCorruptFrame));
}

TEST(JoinVerdict, OfAnotherVersionNamesBoth) {
  Buffer bytes = write_verdict(RoundClosed{});
  bytes[4] = std::byte{base::kWireVersion + 6};
  EXPECT_THAT(parse_verdict(bytes),
              StatusIs(Code::kUnsupported, HasSubstr(cat("wire version ", base::kWireVersion + 6,
                                                         ", this rank has ", base::kWireVersion))));
}

}  // namespace
}  // namespace lockstep::store
