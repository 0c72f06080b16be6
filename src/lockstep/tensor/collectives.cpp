#include "lockstep/tensor/collectives.h"

#include "lockstep/tensor/operation.h"
#include "lockstep/tensor/purpose.h"
#include "lockstep/tensor/sparse.h"
#include "lockstep/tensor/watched.h"

namespace lockstep::tensor {

WorkHandle broadcast(const at::Tensor& tensor, const FromRootOptions& options) {
  return broadcast_for(0, tensor, options);
}

WorkHandle broadcast_for(std::uint64_t purpose, const at::Tensor& tensor, const FromRootOptions& options) {
  Operation op("broadcast", options.group);
  if (!op.member()) return {};
  op.set_purpose(purpose);
  const int root = op.root({.name = "src", .global = options.src, .group = options.group_src});
  op.in_place(tensor, {"tensor"});
  return op.issue(OpKind::kBroadcast, root, {options.async_op, options.timeout});
}

WorkHandle all_reduce(const at::Tensor& tensor, const ReduceOptions& options) {
  return all_reduce_for(0, tensor, options);
}

WorkHandle all_reduce_for(std::uint64_t purpose, const at::Tensor& tensor, const ReduceOptions& options) {
  Operation op("all_reduce", options.group);
  if (!op.member()) return {};
  op.set_purpose(purpose);
  if (tensor.defined() && tensor.is_sparse()) return all_reduce_sparse(op, tensor, options);
  op.in_place(tensor, {"tensor"});
  return op.issue(OpKind::kAllReduce, 0, options.op, {options.async_op, options.timeout});
}

WorkHandle all_reduce_coalesced(const Tensors& tensors, const ReduceOptions& options) {
  Operation op("all_reduce_coalesced", options.group);
  if (!op.member()) return {};
  if (tensors.empty()) op.refuse("tensors is empty.");
  for (std::size_t i = 0; i < tensors.size(); ++i) op.in_place(tensors[i], {"tensors", static_cast<int>(i)});
  return op.issue(OpKind::kAllReduce, 0, options.op, {options.async_op, options.timeout});
}

WorkHandle reduce(const at::Tensor& tensor, const ReduceToRootOptions& options) {
  Operation op("reduce", options.group);
  if (!op.member()) return {};
  const int root = op.root({.name = "dst", .global = options.dst, .group = options.group_dst});
  if (op.rank() == root) {
    op.input_and_output(tensor, {"tensor"});
  } else {
    op.input(tensor, {"tensor"});
  }
  return op.issue(OpKind::kReduce, root, options.op, {options.async_op, options.timeout});
}

WorkHandle barrier(const CollectiveOptions& options) {
  Operation op("barrier", options.group);
  if (!op.member()) return {};
  return op.issue(OpKind::kBarrier, {options.async_op, options.timeout});
}

void monitored_barrier(const MonitoredBarrierOptions& options) {
  const Operation op("monitored_barrier", options.group);
  if (!op.member()) return;
  const std::shared_ptr<Backend> backend = op.state()->any_backend(op.call());
  std::optional<Watched> watched;
  if (Watched::wanted(*op.state()))
    watched.emplace(WatchedCall{.call = op.call(), .state = *op.state(), .backend = *backend});
  const Status status = backend->monitored_barrier(op.options({.timeout = options.timeout}));
  if (watched) {
    watched->complete(status, backend->sequence());
    watched->returned(status, backend->sequence());
  }
  if (!status.ok()) op.throw_status(status);
}

}  // namespace lockstep::tensor
