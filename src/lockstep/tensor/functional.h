// Collectives that return new tensors and have gradients: torch's functional collectives and
// torch.distributed.nn.functional in one.
//
//   namespace F = lockstep::functional;                      // lockstep::nn::functional is the same
//   at::Tensor whole = F::all_gather_single(F::reduce_scatter_single(x));
//   F::all_reduce(local_loss).backward();
//
// A returned tensor is complete: the call waits, the inputs stay as they are, and calls chain. (For overlap
// use the calls of collectives.h with async_op.) Every rank of the group makes the same calls in the same
// order.
//
// Gradients: where an input requires one, the result does, and backward() makes the collective that is the
// derivative, on the thread that runs it. It is one on all ranks, so each of them must run backward through
// it, with graphs of the same form: an input requires a gradient on all ranks or on none, and a result that
// the loss of one rank depends on enters the loss of every rank (times 0 where it does not matter). The
// gradient counts the losses of all ranks. Second derivatives work alike.
// Of the reductions sum, avg and premul_sum have a gradient. For another, with an input that requires one,
// the call is InvalidArgument.
//
// Errors: as in collectives.h, before anything is sent. On a rank that is no member of the group a call logs
// a warning and returns its input; where the result is of another kind than the input, an empty list or an
// undefined tensor.
// Thread safety: any thread; the order of two threads' collectives is theirs to agree on.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/process_group.h"
#include "lockstep/tensor/reduction.h"

namespace lockstep::tensor::functional {

using Shapes = std::vector<std::vector<std::int64_t>>;

// `timeout` in all of these: for this call and for that of its derivative; else the group's.
struct Options {
  ProcessGroup group = {};
  std::optional<Duration> timeout = {};
};
struct ReduceOptions {
  Reduction op = ReduceOp::kSum;
  ProcessGroup group = {};
  std::optional<Duration> timeout = {};
};
struct FromRootOptions {
  std::optional<int> src = {};
  std::optional<int> group_src = {};
  ProcessGroup group = {};
  std::optional<Duration> timeout = {};
};
struct ToRootOptions {
  std::optional<int> dst = {};
  std::optional<int> group_dst = {};
  ProcessGroup group = {};
  std::optional<Duration> timeout = {};
};
struct ReduceToRootOptions {
  std::optional<int> dst = {};
  std::optional<int> group_dst = {};
  Reduction op = ReduceOp::kSum;
  ProcessGroup group = {};
  std::optional<Duration> timeout = {};
};

// The reduction, on every rank. Derivative: the same of the gradients.
at::Tensor all_reduce(const at::Tensor& tensor, const ReduceOptions& options = {});
// Many tensors of one type in one operation, here and in backward.
Tensors all_reduce_coalesced(const Tensors& tensors, const ReduceOptions& options = {});

// The root's, on every rank. Derivative: the sum of all gradients on the root, zero elsewhere.
at::Tensor broadcast(const at::Tensor& tensor, const FromRootOptions& options);
// The reduction on the root; elsewhere a copy of the input, whose gradient does not count. Derivative: the
// root's gradient.
at::Tensor reduce(const at::Tensor& tensor, const ReduceToRootOptions& options);

// One tensor for each rank, all of one shape. Derivative: each rank's part of the sum of the gradients.
Tensors all_gather(const at::Tensor& tensor, const Options& options = {});
// The tensors of all ranks, concatenated along a dimension.
at::Tensor all_gather_single(const at::Tensor& tensor, std::int64_t gather_dim = 0,
                             const Options& options = {});
// Along dimension 0.
Tensors all_gather_single_coalesced(const Tensors& tensors, const Options& options = {});
// One tensor for each rank on the root (global rank 0 by default); elsewhere zeros. Derivative: rank r gets
// the gradient of the root's tensor r.
Tensors gather(const at::Tensor& tensor, const ToRootOptions& options = {});
// The root's tensors[r] on rank r. Every rank gives a list, as long as the group has ranks; elsewhere than on
// the root only the shape of its own tensor matters, and the gradients are zero.
at::Tensor scatter(const Tensors& tensors, const FromRootOptions& options = {});

// Rank r gets the reduction of all ranks' input_list[r]. Derivative: the gradients of all ranks.
at::Tensor reduce_scatter(const Tensors& input_list, const ReduceOptions& options = {});
// Of one tensor, cut evenly along a dimension.
at::Tensor reduce_scatter_single(const at::Tensor& tensor, std::int64_t scatter_dim = 0,
                                 const ReduceOptions& options = {});
// Along dimension 0, or one dimension for each tensor.
Tensors reduce_scatter_single_coalesced(const Tensors& tensors,
                                        const std::vector<std::int64_t>& scatter_dims = {},
                                        const ReduceOptions& options = {});

// input_list[r] goes to rank r. The tensors that come have the given shapes, by default those of the inputs.
// Derivative: the gradients go back.
Tensors all_to_all(const Tensors& input_list, const Shapes& output_shapes = {}, const Options& options = {});
// Rows of one tensor: as many for each rank, or as the sizes say, which are then given for both sides.
at::Tensor all_to_all_single(const at::Tensor& tensor, const SplitSizes& output_split_sizes = {},
                             const SplitSizes& input_split_sizes = {}, const Options& options = {});
// The tensor of rank m of the group goes to rank src_dst[m]; a permutation. Tensors of one shape.
at::Tensor permute_tensor(const at::Tensor& tensor, const std::vector<int>& src_dst,
                          const Options& options = {});

// Torch's other names. Every result here is complete and has its gradient.
inline at::Tensor wait_tensor(const at::Tensor& tensor) { return tensor; }
inline at::Tensor all_gather_single_autograd(const at::Tensor& tensor, std::int64_t gather_dim = 0,
                                             const Options& options = {}) {
  return all_gather_single(tensor, gather_dim, options);
}
inline at::Tensor reduce_scatter_single_autograd(const at::Tensor& tensor, std::int64_t scatter_dim = 0,
                                                 const ReduceOptions& options = {}) {
  return reduce_scatter_single(tensor, scatter_dim, options);
}
inline at::Tensor all_to_all_single_autograd(const at::Tensor& tensor,
                                             const SplitSizes& output_split_sizes = {},
                                             const SplitSizes& input_split_sizes = {},
                                             const Options& options = {}) {
  return all_to_all_single(tensor, output_split_sizes, input_split_sizes, options);
}

}  // namespace lockstep::tensor::functional

namespace lockstep {
namespace functional = tensor::functional;
namespace nn {
namespace functional = tensor::functional;
}
}  // namespace lockstep
