// Our side of `lockstep bench all_reduce --api tensor` and the like: one rank that makes the same calls on
// tensors.
//
//   tensor_collective_peer SOCKET RENDEZVOUS RANK SIZE [INTERFACE]
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/default_group.h"
#include "lockstep/tensor/groups.h"
#include "lockstep/tensor/init.h"
#include "lockstep/tensor/messages.h"
#include "tools/bench/collective_peer.h"

namespace lockstep::bench {
namespace {

at::ScalarType scalar_type_of(DType type) {
  switch (type) {
    case DType::kUint8:
      return at::kByte;
    case DType::kInt8:
      return at::kChar;
    case DType::kInt32:
      return at::kInt;
    case DType::kInt64:
      return at::kLong;
    case DType::kFloat16:
      return at::kHalf;
    case DType::kBFloat16:
      return at::kBFloat16;
    case DType::kFloat64:
      return at::kDouble;
    default:
      return at::kFloat;
  }
}

WorldHandle join(const std::vector<std::string>& arguments) {
  if (arguments.size() < 4) give_up("too few arguments");
  InitOptions options{.init_method = "file://" + arguments[1],
                      .rank = base::parse_integer<int>(arguments[2]).value_or(-1),
                      .world_size = base::parse_integer<int>(arguments[3]).value_or(-1),
                      .timeout = std::chrono::minutes(2)};
  options.world.rendezvous.interfaces.assign(arguments.begin() + 4, arguments.end());
  try {
    return init_process_group(options);
  } catch (const std::exception& error) {
    give_up(error.what());
  }
}

class TensorSide {
 public:
  struct Prepared {
    CollectiveOp op;
    std::vector<at::Tensor> inputs = {};
    std::vector<at::Tensor> outputs = {};
  };

  explicit TensorSide(const std::vector<std::string>& arguments) : world_(join(arguments)) {}

  Rank rank() const { return Rank{get_rank()}; }
  WorldSize size() const { return WorldSize{get_world_size()}; }
  static std::string version() { return LOCKSTEP_VERSION; }
  static std::string lacks(CollectiveOp /*op*/, DType /*dtype*/) { return ""; }

  static Memory allocate(std::size_t bytes, bool resident) {
    if (!resident) return plain_memory(bytes);
    auto shared = tensor::current_session("bench")->native_world("bench")->allocate(Bytes{bytes});
    if (!shared.ok()) give_up(shared.status().text());
    return {.bytes = shared->bytes, .owner = std::move(shared->owner)};
  }

  Prepared prepare(const Operation& operation, ByteSpan inputs, ByteSpan outputs) const {
    const Shape shape = shape_of(operation.op, operation.bytes, operation.dtype, rank(), size());
    const std::size_t block = shape.block * collective::size_of(operation.dtype);
    const auto tensor_at = [&](ByteSpan bytes, int index) {
      return at::from_blob(bytes.data() + static_cast<std::size_t>(index) * block,
                           {static_cast<std::int64_t>(shape.block)}, scalar_type_of(operation.dtype));
    };
    Prepared prepared{.op = operation.op};
    for (int i = 0; i < shape.inputs; ++i) prepared.inputs.push_back(tensor_at(inputs, i));
    for (int i = 0; i < shape.outputs; ++i) prepared.outputs.push_back(tensor_at(outputs, i));
    return prepared;
  }

  void run(const Prepared& prepared) {
    const auto& [op, inputs, outputs] = prepared;
    constexpr int kRoot = kBenchRoot.value;
    switch (op) {
      case CollectiveOp::kAllReduce:
        all_reduce(outputs[0]);
        return;
      case CollectiveOp::kBroadcast:
        broadcast(outputs[0], {.src = kRoot});
        return;
      case CollectiveOp::kReduce:
        reduce(outputs[0], {.dst = kRoot});
        return;
      case CollectiveOp::kAllGather:
        all_gather(outputs, inputs[0]);
        return;
      case CollectiveOp::kGather:
        gather(inputs[0], outputs, {.dst = kRoot});
        return;
      case CollectiveOp::kScatter:
        scatter(outputs[0], inputs, {.src = kRoot});
        return;
      case CollectiveOp::kReduceScatter:
        reduce_scatter(outputs[0], inputs);
        return;
      case CollectiveOp::kAllToAll:
        all_to_all(outputs, inputs);
        return;
      case CollectiveOp::kBarrier:
        return barrier();
      case CollectiveOp::kSendRecv:
        return play(inputs, outputs);
    }
  }

  static void barrier() { lockstep::barrier(); }

 private:
  void play(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs) const {
    const auto partner = partner_of(rank(), size());
    if (!partner) return;
    const bool begins = rank() < *partner;
    if (begins) send(inputs[0], {.dst = partner->value});
    recv(outputs[0], {.src = partner->value});
    if (!begins) send(inputs[0], {.dst = partner->value});
  }

  WorldHandle world_;
};

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  return lockstep::bench::run_collective_peer<lockstep::bench::TensorSide>(argc, argv);
}
