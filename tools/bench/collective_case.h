// What `lockstep bench` can measure of the communication core: the operations, and how large their buffers
// are. Shared by the command and by those of its helpers that are C++. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "lockstep/base/types.h"
#include "lockstep/collective/dtype.h"

namespace lockstep::bench {

enum class CollectiveOp {
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  kBarrier,
  kSendRecv,  // pairs of ranks: a message there and, once it has come, one back
};
inline constexpr std::array kCollectiveOps = {CollectiveOp::kAllReduce,     CollectiveOp::kBroadcast,
                                              CollectiveOp::kReduce,        CollectiveOp::kAllGather,
                                              CollectiveOp::kGather,        CollectiveOp::kScatter,
                                              CollectiveOp::kReduceScatter, CollectiveOp::kAllToAll,
                                              CollectiveOp::kBarrier,       CollectiveOp::kSendRecv};
// Of the operations that have one.
constexpr Rank kBenchRoot{0};

std::string_view name_of(CollectiveOp op);  // "all_reduce"
std::optional<CollectiveOp> parse_collective_op(std::string_view name);

// Whom a rank plays kSendRecv with: rank i with rank i + n/2, which is on the other host where there are two.
// The lower one begins. Nobody for the last of an odd number.
std::optional<Rank> partner_of(Rank rank, WorldSize size);
// What its time is divided by: a ping-pong is two messages.
constexpr int steps_of(CollectiveOp op) { return op == CollectiveOp::kSendRecv ? 2 : 1; }

// The number types that every bench can fill and verify.
inline constexpr std::array kBenchTypes = {DType::kUint8,   DType::kInt8,    DType::kInt32,
                                           DType::kInt64,   DType::kFloat16, DType::kBFloat16,
                                           DType::kFloat32, DType::kFloat64};
std::optional<DType> parse_bench_type(std::string_view name);

// One rank's buffers: blocks of equal size, one after the other. Where an operation works in place it has
// outputs only.
struct Shape {
  std::size_t block = 0;  // elements
  int inputs = 0;         // blocks
  int outputs = 0;

  bool operator==(const Shape&) const = default;
};

// As nccl-tests counts: `bytes` is the larger of what one rank gives and what one rank gets, the root where
// there is one. It is cut to a whole number of elements, and of blocks where the operation has one for each
// rank.
Shape shape_of(CollectiveOp op, Bytes bytes, DType dtype, Rank rank, WorldSize size);
// `bytes`, cut as above; zero for a barrier.
Bytes bytes_of_case(CollectiveOp op, Bytes bytes, DType dtype, WorldSize size);

// Bus bandwidth is this times bytes / time: what the slowest link must carry at least, whatever the number of
// ranks.
double bus_factor(CollectiveOp op, WorldSize size);

}  // namespace lockstep::bench
