// Our side of `lockstep bench all_reduce` and the like: one rank.
//
//   lockstep_collective_peer SOCKET RENDEZVOUS RANK SIZE [INTERFACE]
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/backend/world.h"
#include "lockstep/base/text.h"
#include "tools/bench/collective_peer.h"

namespace lockstep::bench {
namespace {

template <typename T>
T checked(Result<T> result) {
  if (!result.ok()) give_up(result.status().text());
  return std::move(result).value();
}
void checked(const Status& status) {
  if (!status.ok()) give_up(status.text());
}

OpKind kind_of(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::kAllReduce:
      return OpKind::kAllReduce;
    case CollectiveOp::kBroadcast:
      return OpKind::kBroadcast;
    case CollectiveOp::kReduce:
      return OpKind::kReduce;
    case CollectiveOp::kAllGather:
      return OpKind::kAllGather;
    case CollectiveOp::kGather:
      return OpKind::kGather;
    case CollectiveOp::kScatter:
      return OpKind::kScatter;
    case CollectiveOp::kReduceScatter:
      return OpKind::kReduceScatter;
    case CollectiveOp::kAllToAll:
      return OpKind::kAllToAll;
    case CollectiveOp::kBarrier:
    case CollectiveOp::kSendRecv:  // no collective: messages
      break;
  }
  return OpKind::kBarrier;
}

std::unique_ptr<World> join(const std::vector<std::string>& arguments) {
  if (arguments.size() < 4) give_up("too few arguments");
  WorldOptions options;
  options.rendezvous.url = "file://" + arguments[1];
  options.rendezvous.rank = Rank{base::parse_integer<int>(arguments[2]).value_or(-1)};
  options.rendezvous.world_size = WorldSize{base::parse_integer<int>(arguments[3]).value_or(-1)};
  options.rendezvous.interfaces.assign(arguments.begin() + 4, arguments.end());
  options.timeout = std::chrono::minutes(2);
  return checked(World::join(options));
}

class LockstepSide {
 public:
  // The call of one operation, with the lists that it borrows.
  struct Prepared {
    CollectiveOp op;
    Call call = {};
    std::vector<ByteView> inputs = {};
    std::vector<ByteSpan> outputs = {};
  };

  explicit LockstepSide(const std::vector<std::string>& arguments)
      : world_(join(arguments)), group_(world_->group()) {}

  Rank rank() const { return group_.rank(); }
  WorldSize size() const { return group_.size(); }
  static std::string version() { return LOCKSTEP_VERSION; }
  static std::string lacks(CollectiveOp /*op*/, DType /*dtype*/) { return ""; }

  Memory allocate(std::size_t bytes, bool resident) {
    if (!resident) return plain_memory(bytes);
    SharedMemory shared = checked(world_->allocate(Bytes{bytes}));
    return {.bytes = shared.bytes, .owner = std::move(shared.owner)};
  }

  Prepared prepare(const Operation& operation, ByteSpan inputs, ByteSpan outputs) const {
    const Shape shape = shape_of(operation.op, operation.bytes, operation.dtype, rank(), size());
    const std::size_t block = shape.block * collective::size_of(operation.dtype);
    Prepared prepared{.op = operation.op};
    for (std::size_t i = 0; i < static_cast<std::size_t>(shape.inputs); ++i) {
      prepared.inputs.push_back(inputs.subspan(i * block, block));
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(shape.outputs); ++i) {
      prepared.outputs.push_back(outputs.subspan(i * block, block));
    }
    if (operation.op == CollectiveOp::kReduce) {  // in place on the root, which alone has an output
      prepared.inputs.assign(prepared.outputs.begin(), prepared.outputs.end());
      if (rank() != kBenchRoot) prepared.outputs.clear();
    }
    prepared.call = {.kind = kind_of(operation.op),
                     .dtype = operation.dtype,
                     .root = kBenchRoot,
                     .inputs = prepared.inputs,
                     .outputs = prepared.outputs};
    return prepared;
  }

  void run(const Prepared& prepared) {
    if (prepared.op != CollectiveOp::kSendRecv) return checked(group_.run(prepared.call));
    const auto partner = partner_of(rank(), size());
    if (!partner) return;
    const bool begins = rank() < *partner;
    if (begins) checked(group_.send(*partner, 0, prepared.inputs[0])->wait());
    checked(group_.recv(*partner, 0, prepared.outputs[0])->wait());
    if (!begins) checked(group_.send(*partner, 0, prepared.inputs[0])->wait());
  }

  void barrier() { checked(group_.run({.kind = OpKind::kBarrier})); }

 private:
  std::unique_ptr<World> world_;
  Backend& group_;
};

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  return lockstep::bench::run_collective_peer<lockstep::bench::LockstepSide>(argc, argv);
}
