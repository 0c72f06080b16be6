// MPI's side of `lockstep bench all_reduce` and the like: started by mpirun, once for each rank.
#include <mpi.h>

#include <string>
#include <vector>

#include "tools/bench/collective_peer.h"

namespace lockstep::bench {
namespace {

void checked(int result) {
  if (result != MPI_SUCCESS) give_up("MPI answered with error " + std::to_string(result));
}

MPI_Datatype type_of(DType dtype) {
  switch (dtype) {
    case DType::kUint8:
      return MPI_UINT8_T;
    case DType::kInt8:
      return MPI_INT8_T;
    case DType::kInt32:
      return MPI_INT32_T;
    case DType::kInt64:
      return MPI_INT64_T;
    case DType::kFloat32:
      return MPI_FLOAT;
    case DType::kFloat64:
      return MPI_DOUBLE;
    default:
      return MPI_DATATYPE_NULL;
  }
}

class MpiSide {
 public:
  struct Prepared {
    CollectiveOp op;
    MPI_Datatype type;
    int count;  // of a block
    void* inputs;
    void* outputs;
  };

  explicit MpiSide(const std::vector<std::string>& /*arguments*/) {
    checked(MPI_Init(nullptr, nullptr));
    checked(MPI_Comm_rank(MPI_COMM_WORLD, &rank_));
    checked(MPI_Comm_size(MPI_COMM_WORLD, &size_));
  }
  MpiSide(const MpiSide&) = delete;
  MpiSide& operator=(const MpiSide&) = delete;
  ~MpiSide() { MPI_Finalize(); }

  Rank rank() const { return Rank{rank_}; }
  WorldSize size() const { return WorldSize{size_}; }
  static std::string version() {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    checked(MPI_Get_library_version(text, &length));
    const std::string all(text, static_cast<std::size_t>(length));
    return all.substr(0, all.find(','));
  }
  static std::string lacks(CollectiveOp /*op*/, DType dtype) {
    return type_of(dtype) == MPI_DATATYPE_NULL ? std::string(collective::name_of(dtype)) : std::string();
  }
  static Memory allocate(std::size_t bytes, bool /*resident*/) { return plain_memory(bytes); }

  Prepared prepare(const Operation& operation, ByteSpan inputs, ByteSpan outputs) const {
    const Shape shape = shape_of(operation.op, operation.bytes, operation.dtype, rank(), size());
    return {operation.op, type_of(operation.dtype), static_cast<int>(shape.block), inputs.data(),
            outputs.data()};
  }

  void run(const Prepared& p) const {
    const MPI_Comm all = MPI_COMM_WORLD;
    const int root = kBenchRoot.value;
    switch (p.op) {
      case CollectiveOp::kAllReduce:
        return checked(MPI_Allreduce(MPI_IN_PLACE, p.outputs, p.count, p.type, MPI_SUM, all));
      case CollectiveOp::kBroadcast:
        return checked(MPI_Bcast(p.outputs, p.count, p.type, root, all));
      case CollectiveOp::kReduce:
        return checked(MPI_Reduce(rank_ == root ? MPI_IN_PLACE : p.outputs, p.outputs, p.count, p.type,
                                  MPI_SUM, root, all));
      case CollectiveOp::kAllGather:
        return checked(MPI_Allgather(p.inputs, p.count, p.type, p.outputs, p.count, p.type, all));
      case CollectiveOp::kGather:
        return checked(MPI_Gather(p.inputs, p.count, p.type, p.outputs, p.count, p.type, root, all));
      case CollectiveOp::kScatter:
        return checked(MPI_Scatter(p.inputs, p.count, p.type, p.outputs, p.count, p.type, root, all));
      case CollectiveOp::kReduceScatter:
        return checked(MPI_Reduce_scatter_block(p.inputs, p.outputs, p.count, p.type, MPI_SUM, all));
      case CollectiveOp::kAllToAll:
        return checked(MPI_Alltoall(p.inputs, p.count, p.type, p.outputs, p.count, p.type, all));
      case CollectiveOp::kBarrier:
        return barrier();
      case CollectiveOp::kSendRecv:
        return ping_pong(p);
    }
  }

  void ping_pong(const Prepared& p) const {
    const auto partner = partner_of(rank(), size());
    if (!partner) return;
    const MPI_Comm all = MPI_COMM_WORLD;
    const bool begins = rank() < *partner;
    if (begins) checked(MPI_Send(p.inputs, p.count, p.type, partner->value, 0, all));
    checked(MPI_Recv(p.outputs, p.count, p.type, partner->value, 0, all, MPI_STATUS_IGNORE));
    if (!begins) checked(MPI_Send(p.inputs, p.count, p.type, partner->value, 0, all));
  }

  static void barrier() { checked(MPI_Barrier(MPI_COMM_WORLD)); }

 private:
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  return lockstep::bench::run_collective_peer<lockstep::bench::MpiSide>(argc, argv);
}
