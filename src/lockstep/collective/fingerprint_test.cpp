#include "lockstep/collective/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::collective {
namespace {

using ::testing::HasSubstr;

Fingerprint all_reduce_418() {
  return {.group = 1,
          .sequence = 418,
          .count = 25U << 18,
          .kind = OpKind::kAllReduce,
          .dtype = DType::kFloat32,
          .reduce_op = ReduceOp::kSum};
}

TEST(Fingerprint, ReadsAsThePersonWhoMadeTheCallWouldSayIt) {
  EXPECT_EQ(all_reduce_418().text(), "all_reduce #418 (25.0 MiB, float32, sum)");
  const Fingerprint broadcast{
      .sequence = 7, .count = 512, .root = 2, .kind = OpKind::kBroadcast, .dtype = DType::kInt64};
  EXPECT_EQ(broadcast.text(), "broadcast #7 (4.0 KiB, int64, root 2)");
  EXPECT_EQ((Fingerprint{.sequence = 3, .kind = OpKind::kBarrier}).text(), "barrier #3");
  // Not every rank knows how much they move.
  EXPECT_EQ((Fingerprint{.sequence = 4, .kind = OpKind::kAllToAll, .dtype = DType::kInt8}).text(),
            "all_to_all #4 (int8)");
  EXPECT_EQ((Fingerprint{.sequence = 5, .root = 1, .kind = OpKind::kGather, .dtype = DType::kInt8}).text(),
            "gather #5 (int8, root 1)");
}

TEST(Fingerprint, GarbageFromAPeerIsStillText) {
  Fingerprint garbage;
  garbage.kind = static_cast<OpKind>(200);
  garbage.dtype = static_cast<DType>(99);
  garbage.reduce_op = static_cast<ReduceOp>(77);
  garbage.count = 5;
  EXPECT_EQ(garbage.text(), "unknown operation #0 (5 elements)");
}

TEST(Fingerprint, EveryDifferenceIsADesyncThatNamesBothSides) {
  const Fingerprint own = all_reduce_418();
  struct Case {
    const char* what;
    void (*change)(Fingerprint&);
  };
  const Case kCases[] = {
      {"group", [](Fingerprint& f) { f.group = 2; }},
      {"sequence number", [](Fingerprint& f) { f.sequence = 417; }},
      {"operation", [](Fingerprint& f) { f.kind = OpKind::kReduce; }},
      {"dtype", [](Fingerprint& f) { f.dtype = DType::kInt32; }},
      {"number of elements", [](Fingerprint& f) { ++f.count; }},
      {"reduce op", [](Fingerprint& f) { f.reduce_op = ReduceOp::kMax; }},
      {"root", [](Fingerprint& f) { f.root = 0; }},
      {"sizes of the buffers, or what they are for", [](Fingerprint& f) { f.detail = 1; }},
  };
  for (const Case& c : kCases) {
    Fingerprint theirs = own;
    c.change(theirs);
    EXPECT_NE(own, theirs) << c.what;
    const Status status = desync(Rank{0}, own, Rank{3}, theirs);
    EXPECT_EQ(status.failure(), Failure::kDesync);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("rank 0 is in " + own.text() + ", rank 3 is in " + theirs.text()));
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("first difference is the ") + c.what));
  }
}

}  // namespace
}  // namespace lockstep::collective
