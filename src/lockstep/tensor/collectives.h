// The collectives of torch.distributed on tensors.
//
//   lockstep::all_reduce(gradient, {.op = ReduceOp::kAvg});
//   lockstep::broadcast(weights, {.src = 0});
//   auto work = lockstep::all_gather_single(all, own, {.group = pair, .async_op = true});
//
// Every rank of the group calls the same collectives, in the same order, with tensors that fit; what does not
// fit between ranks is a Desync that names both.
// Synchronous calls run on the calling thread and return when this rank's part is done. With async_op they
// return at once, and the WorkHandle is to be waited for; the tensors are the operation's until then.
// Tensors may be of any shape, strides and type (float8 is moved but not reduced); one that is not contiguous
// is staged. An output must not share memory with another tensor of the call.
// `src` and `dst` are global ranks, `group_src` and `group_dst` ranks in the group: exactly one of the two is
// given, but for gather and scatter, whose root is global rank 0 by default.
//
// Errors: InvalidArgument, with a sentence that names the rank, the call and the argument, before anything is
// sent; the group lives on. DistError for what happens later.
// On a rank that is no member of the group every call logs a warning and does nothing.
// Thread safety: any thread; the order of two threads' collectives is theirs to agree on.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/tensor/process_group.h"
#include "lockstep/tensor/reduction.h"
#include "lockstep/tensor/work_handle.h"

namespace lockstep::tensor {

using Tensors = std::vector<at::Tensor>;
using SplitSizes = std::vector<std::int64_t>;

// `timeout` in all of these: for this call; else the group's.
struct CollectiveOptions {
  ProcessGroup group = {};
  bool async_op = false;
  std::optional<Duration> timeout = {};
};
struct ReduceOptions {
  Reduction op = ReduceOp::kSum;
  ProcessGroup group = {};
  bool async_op = false;
  std::optional<Duration> timeout = {};
};
struct FromRootOptions {
  std::optional<int> src = {};
  std::optional<int> group_src = {};
  ProcessGroup group = {};
  bool async_op = false;
  std::optional<Duration> timeout = {};
};
struct ToRootOptions {
  std::optional<int> dst = {};
  std::optional<int> group_dst = {};
  ProcessGroup group = {};
  bool async_op = false;
  std::optional<Duration> timeout = {};
};
struct ReduceToRootOptions {
  std::optional<int> dst = {};
  std::optional<int> group_dst = {};
  Reduction op = ReduceOp::kSum;
  ProcessGroup group = {};
  bool async_op = false;
  std::optional<Duration> timeout = {};
};
struct MonitoredBarrierOptions {
  ProcessGroup group = {};
  std::optional<Duration> timeout = {};
  // torch's argument, for calls that are written as torch's: whether all ranks that are missing are named, or
  // the first of them. Here all are, either way, and it takes no longer.
  bool wait_all_ranks = false;
};

// In place: the root's elements, on every rank.
WorkHandle broadcast(const at::Tensor& tensor, const FromRootOptions& options);

// In place: the reduction of all ranks' elements, on every rank. A sparse COO tensor becomes the sum,
// coalesced.
WorkHandle all_reduce(const at::Tensor& tensor, const ReduceOptions& options = {});
// Many tensors of one type in one operation.
WorkHandle all_reduce_coalesced(const Tensors& tensors, const ReduceOptions& options = {});
// In place on the root; the others' tensors stay as they are.
WorkHandle reduce(const at::Tensor& tensor, const ReduceToRootOptions& options);

// tensor_list[r] takes rank r's tensor; ranks may have tensors of different sizes.
WorkHandle all_gather(const Tensors& tensor_list, const at::Tensor& tensor,
                      const CollectiveOptions& options = {});
// `output` has the inputs of all ranks, in rank order: concatenated ([n * a, b] of [a, b]), stacked
// ([n, a, b]), or flat ([n * a * b]). `input` may be this rank's own part of it.
WorkHandle all_gather_single(const at::Tensor& output, const at::Tensor& input,
                             const CollectiveOptions& options = {});
inline WorkHandle all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input,
                                         const CollectiveOptions& options = {}) {
  return all_gather_single(output, input, options);
}
// output_tensor_lists[r][i] takes input_tensor_list[i] of rank r.
WorkHandle all_gather_coalesced(const std::vector<Tensors>& output_tensor_lists,
                                const Tensors& input_tensor_list, const CollectiveOptions& options = {});

// On the root gather_list[r] takes rank r's tensor; elsewhere it is empty.
WorkHandle gather(const at::Tensor& tensor, const Tensors& gather_list = {},
                  const ToRootOptions& options = {});
// On the root `output` has the inputs of all ranks, in the shapes of all_gather_single(), and `input` may be
// its own part of it; elsewhere `output` is an undefined tensor.
WorkHandle gather_single(const at::Tensor& output, const at::Tensor& input,
                         const ToRootOptions& options = {});
// Rank r gets the root's scatter_list[r]; elsewhere it is empty.
WorkHandle scatter(const at::Tensor& tensor, const Tensors& scatter_list = {},
                   const FromRootOptions& options = {});

// Rank r gets the reduction of all ranks' input_list[r].
WorkHandle reduce_scatter(const at::Tensor& output, const Tensors& input_list,
                          const ReduceOptions& options = {});
// The same; `input` is cut into parts as all_gather_single() joins them. `output` may be this rank's own part
// of it; then the input is copied first.
WorkHandle reduce_scatter_single(const at::Tensor& output, const at::Tensor& input,
                                 const ReduceOptions& options = {});
inline WorkHandle reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input,
                                        const ReduceOptions& options = {}) {
  return reduce_scatter_single(output, input, options);
}

// input_tensor_list[r] goes to rank r; output_tensor_list[r] comes from it.
WorkHandle all_to_all(const Tensors& output_tensor_list, const Tensors& input_tensor_list,
                      const CollectiveOptions& options = {});
// The same with rows (of dimension 0) of one tensor: as many for each rank, or as the sizes say.
WorkHandle all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                             const SplitSizes& output_split_sizes = {},
                             const SplitSizes& input_split_sizes = {}, const CollectiveOptions& options = {});

// Returns when every rank has come.
WorkHandle barrier(const CollectiveOptions& options = {});
// The same through the store. MissingRanks names all ranks that did not come, and ends the group. Slower.
void monitored_barrier(const MonitoredBarrierOptions& options = {});

}  // namespace lockstep::tensor

namespace lockstep {
using tensor::all_gather;
using tensor::all_gather_coalesced;
using tensor::all_gather_into_tensor;
using tensor::all_gather_single;
using tensor::all_reduce;
using tensor::all_reduce_coalesced;
using tensor::all_to_all;
using tensor::all_to_all_single;
using tensor::barrier;
using tensor::broadcast;
using tensor::CollectiveOptions;
using tensor::FromRootOptions;
using tensor::gather;
using tensor::gather_single;
using tensor::monitored_barrier;
using tensor::MonitoredBarrierOptions;
using tensor::reduce;
using tensor::reduce_scatter;
using tensor::reduce_scatter_single;
using tensor::reduce_scatter_tensor;
using tensor::ReduceOptions;
using tensor::ReduceToRootOptions;
using tensor::scatter;
using tensor::SplitSizes;
using tensor::Tensors;
using tensor::ToRootOptions;
}  // namespace lockstep
