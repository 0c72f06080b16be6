#include "tools/bench/collective_case.h"

#include <gtest/gtest.h>

namespace lockstep::bench {
namespace {

TEST(CollectiveCase, EveryOperationHasANameThatIsReadBack) {
  for (const CollectiveOp op : kCollectiveOps) EXPECT_EQ(parse_collective_op(name_of(op)), op);
  EXPECT_EQ(parse_collective_op("allreduce"), std::nullopt);
  EXPECT_EQ(parse_bench_type("float32"), DType::kFloat32);
  EXPECT_EQ(parse_bench_type("complex64"), std::nullopt);
}

TEST(CollectiveCase, BlocksAreThoseOfEachOperation) {
  struct Expected {
    CollectiveOp op;
    Shape root;
    Shape other;
  };
  for (const auto& [op, root, other] : {
           Expected{CollectiveOp::kAllReduce, {1024, 0, 1}, {1024, 0, 1}},
           Expected{CollectiveOp::kBroadcast, {1024, 0, 1}, {1024, 0, 1}},
           Expected{CollectiveOp::kReduce, {1024, 0, 1}, {1024, 0, 1}},
           Expected{CollectiveOp::kAllGather, {256, 1, 4}, {256, 1, 4}},
           Expected{CollectiveOp::kGather, {256, 1, 4}, {256, 1, 0}},
           Expected{CollectiveOp::kScatter, {256, 4, 1}, {256, 0, 1}},
           Expected{CollectiveOp::kReduceScatter, {256, 4, 1}, {256, 4, 1}},
           Expected{CollectiveOp::kAllToAll, {256, 4, 4}, {256, 4, 4}},
           Expected{CollectiveOp::kBarrier, {0, 0, 0}, {0, 0, 0}},
           Expected{CollectiveOp::kSendRecv, {1024, 1, 1}, {1024, 1, 1}},
       }) {
    const auto shape = [op = op](int rank) {
      return shape_of(op, Bytes::kib(4), DType::kFloat32, Rank{rank}, WorldSize{4});
    };
    EXPECT_EQ(shape(0), root) << name_of(op);
    EXPECT_EQ(shape(3), other) << name_of(op);
  }
}

TEST(CollectiveCase, BytesAreCutToWholeBlocks) {
  const auto cut = [](CollectiveOp op, std::uint64_t bytes) {
    return bytes_of_case(op, Bytes{bytes}, DType::kFloat32, WorldSize{3}).value;
  };
  EXPECT_EQ(cut(CollectiveOp::kAllReduce, 4099), 4096);
  EXPECT_EQ(cut(CollectiveOp::kAllGather, 4096), 4092);
  EXPECT_EQ(cut(CollectiveOp::kGather, 4096), 4092);
  EXPECT_EQ(cut(CollectiveOp::kScatter, 4096), 4092);
  EXPECT_EQ(cut(CollectiveOp::kAllGather, 11), 0);
  EXPECT_EQ(cut(CollectiveOp::kBarrier, 4096), 0);
}

TEST(CollectiveCase, BusFactorsAreThoseOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveOp::kAllReduce, WorldSize{4}), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveOp::kReduceScatter, WorldSize{4}), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveOp::kAllToAll, WorldSize{4}), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveOp::kBroadcast, WorldSize{4}), 1);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveOp::kAllReduce, WorldSize{1}), 0);
}

}  // namespace
}  // namespace lockstep::bench
