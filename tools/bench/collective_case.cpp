#include "tools/bench/collective_case.h"

#include <algorithm>

namespace lockstep::bench {
namespace {

// Whether a rank's larger buffer has one block for each rank.
bool has_blocks(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::kAllGather:
    case CollectiveOp::kGather:
    case CollectiveOp::kScatter:
    case CollectiveOp::kReduceScatter:
    case CollectiveOp::kAllToAll:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string_view name_of(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::kAllReduce:
      return "all_reduce";
    case CollectiveOp::kBroadcast:
      return "broadcast";
    case CollectiveOp::kReduce:
      return "reduce";
    case CollectiveOp::kAllGather:
      return "all_gather";
    case CollectiveOp::kGather:
      return "gather";
    case CollectiveOp::kScatter:
      return "scatter";
    case CollectiveOp::kReduceScatter:
      return "reduce_scatter";
    case CollectiveOp::kAllToAll:
      return "all_to_all";
    case CollectiveOp::kBarrier:
      return "barrier";
    case CollectiveOp::kSendRecv:
      return "send_recv";
  }
  return {};
}

std::optional<Rank> partner_of(Rank rank, WorldSize size) {
  const int half = size.value / 2;
  if (rank.value >= 2 * half) return std::nullopt;
  return Rank{(rank.value + half) % (2 * half)};
}

std::optional<CollectiveOp> parse_collective_op(std::string_view name) {
  const auto* const found = std::find_if(kCollectiveOps.begin(), kCollectiveOps.end(),
                                         [name](CollectiveOp op) { return name_of(op) == name; });
  if (found == kCollectiveOps.end()) return std::nullopt;
  return *found;
}

std::optional<DType> parse_bench_type(std::string_view name) {
  const auto* const found = std::find_if(kBenchTypes.begin(), kBenchTypes.end(),
                                         [name](DType type) { return collective::name_of(type) == name; });
  if (found == kBenchTypes.end()) return std::nullopt;
  return *found;
}

Shape shape_of(CollectiveOp op, Bytes bytes, DType dtype, Rank rank, WorldSize size) {
  const std::size_t elements = bytes.value / collective::size_of(dtype);
  const int n = size.value;
  const int whole_on_root = rank == kBenchRoot ? n : 0;
  Shape shape{.block = has_blocks(op) ? elements / static_cast<std::size_t>(n) : elements};
  switch (op) {
    case CollectiveOp::kAllReduce:
    case CollectiveOp::kBroadcast:
    case CollectiveOp::kReduce:
      shape.outputs = 1;
      break;
    case CollectiveOp::kAllGather:
      shape.inputs = 1;
      shape.outputs = n;
      break;
    case CollectiveOp::kGather:
      shape.inputs = 1;
      shape.outputs = whole_on_root;
      break;
    case CollectiveOp::kScatter:
      shape.inputs = whole_on_root;
      shape.outputs = 1;
      break;
    case CollectiveOp::kReduceScatter:
      shape.inputs = n;
      shape.outputs = 1;
      break;
    case CollectiveOp::kAllToAll:
      shape.inputs = n;
      shape.outputs = n;
      break;
    case CollectiveOp::kSendRecv:
      shape.inputs = 1;
      shape.outputs = 1;
      break;
    case CollectiveOp::kBarrier:
      shape.block = 0;
      break;
  }
  return shape;
}

Bytes bytes_of_case(CollectiveOp op, Bytes bytes, DType dtype, WorldSize size) {
  const Shape shape = shape_of(op, bytes, dtype, kBenchRoot, size);
  const auto blocks = static_cast<std::size_t>(std::max(shape.inputs, shape.outputs));
  return Bytes{shape.block * blocks * collective::size_of(dtype)};
}

double bus_factor(CollectiveOp op, WorldSize size) {
  const double n = size.value;
  if (op == CollectiveOp::kAllReduce) return 2 * (n - 1) / n;
  return has_blocks(op) ? (n - 1) / n : 1;
}

}  // namespace lockstep::bench
