// The operations of ProcessGroupLockstep: torch's arguments as ours.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

#include "extension/errors.h"
#include "extension/process_group.h"
#include "lockstep/base/text.h"
#include "lockstep/tensor/coalescing.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/messages.h"

namespace lockstep::python {
namespace {

using c10d::OpType;
using std::chrono::milliseconds;
using tensor::WorkHandle;

std::optional<Duration> duration(milliseconds timeout) {
  return timeout == c10d::kUnsetTimeout ? std::nullopt : std::optional<Duration>(timeout);
}

// Throws ValueError, which says who has asked for what: before anything is noted of the operation.
tensor::Reduction reduction(const Within& within, const char* call, const c10d::ReduceOp& op) {
  const auto refuse = [&](const auto&... what) {
    throw_torch(Status::invalid(cat("rank ", within.names->own(), ": ", call, ": ", what...)));
  };
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::kSum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::kAvg;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::kProduct;
    case c10d::ReduceOp::MIN:
      return ReduceOp::kMin;
    case c10d::ReduceOp::MAX:
      return ReduceOp::kMax;
    case c10d::ReduceOp::BAND:
      return ReduceOp::kBand;
    case c10d::ReduceOp::BOR:
      return ReduceOp::kBor;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::kBxor;
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* const factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      if (factor == nullptr) refuse("PREMUL_SUM has no factor.");
      return tensor::premul_sum(factor->tensor_factor.defined() ? factor->tensor_factor.item<double>()
                                                                : factor->double_factor);
    }
    default:
      refuse("there is no reduce operation ", static_cast<int>(op.op_), ".");
      return ReduceOp::kSum;
  }
}

template <typename Given>
tensor::CollectiveOptions plain(const tensor::ProcessGroup& group, const Given& given) {
  return {.group = group, .async_op = given.asyncOp, .timeout = duration(given.timeout)};
}

template <typename Given>
tensor::ReduceOptions reducing(const Within& within, const char* call, const Given& given) {
  return {.op = reduction(within, call, given.reduceOp),
          .group = tensor::ProcessGroup(within.state),
          .async_op = given.asyncOp,
          .timeout = duration(given.timeout)};
}

template <typename Given>
int root(const Given& given) {
  return static_cast<int>(given.rootRank);
}

// A gather's list where there is none: torch gives an empty list, or a list with an empty one.
const std::vector<at::Tensor> kNone;

// Whether what this rank gives to itself lies where it takes it, as in all_gather(list, list[rank]), which
// torch's own backends allow.
bool is_in_place(const at::Tensor& given, const at::Tensor& taken) {
  const auto has_memory = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() && tensor.numel() > 0;
  };
  return has_memory(given) && has_memory(taken) && given.const_data_ptr() == taken.const_data_ptr();
}

// `given`, or a copy of it where the call is in place. Any other overlap is found later, and refused.
at::Tensor apart(const at::Tensor& given, const at::Tensor& taken) {
  return is_in_place(given, taken) ? given.detach().clone() : given;
}

// `list`, with a copy of what is at `own` where that is in place.
std::vector<at::Tensor> own_apart(std::vector<at::Tensor> list, int own, const at::Tensor& taken) {
  const auto at = static_cast<std::size_t>(own);
  if (at < list.size()) list[at] = apart(list[at], taken);
  return list;
}

// What is at `own`; nothing in a list that is too short, which is refused later.
at::Tensor at_own(const std::vector<at::Tensor>& list, int own) {
  const auto at = static_cast<std::size_t>(own);
  return at < list.size() ? list[at] : at::Tensor();
}

// Whether two tensors of as many elements are divided into as many parts along rows of different shapes: then
// torch's own backends move the elements, whatever their shapes.
bool have_other_rows(const at::Tensor& output, const at::Tensor& input, int parts) {
  const auto is_divided = [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.dim() > 0 && tensor.is_contiguous() && tensor.size(0) % parts == 0;
  };
  return is_divided(output) && is_divided(input) && output.numel() == input.numel() &&
         output.sizes().slice(1) != input.sizes().slice(1);
}

// The places of the tensors of each type: what travels together is of one type.
std::vector<std::vector<std::size_t>> by_type(const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<std::size_t>> places;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto same = std::find_if(places.begin(), places.end(), [&](const auto& group) {
      return tensors[group.front()].scalar_type() == tensors[i].scalar_type();
    });
    if (same == places.end()) {
      places.push_back({i});
    } else {
      same->push_back(i);
    }
  }
  return places;
}

std::vector<at::Tensor> at_places(const std::vector<at::Tensor>& tensors,
                                  const std::vector<std::size_t>& places) {
  std::vector<at::Tensor> some;
  some.reserve(places.size());
  for (const std::size_t i : places) some.push_back(tensors[i]);
  return some;
}

}  // namespace

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

template <typename Written, typename Given>
ProcessGroupLockstep::Named ProcessGroupLockstep::named(OpType type, const char* name,
                                                        c10::ArrayRef<Tensor> inputs, const Written& written,
                                                        const Given& given) {
  Named named{.type = type, .name = name, .inputs = inputs};
  if constexpr (std::is_same_v<Written, TensorLists>) {
    named.outputs = written;
  } else {
    named.output = written;
  }
  named.async_op = given.asyncOp;
  named.timeout = given.timeout;
  return named;
}

WorkPtr ProcessGroupLockstep::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const Tensor& tensor = only("broadcast", tensors);
  return issue(named(OpType::BROADCAST, "broadcast", tensors, tensors, opts), [&] {
    return tensor::broadcast(tensor, {.group_src = root(opts),
                                      .group = group(),
                                      .async_op = opts.asyncOp,
                                      .timeout = duration(opts.timeout)});
  });
}

WorkPtr ProcessGroupLockstep::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const Tensor& tensor = only("all_reduce", tensors);
  if (tensor.is_sparse()) return allreduce_sparse(tensors, opts);
  const tensor::ReduceOptions asked = reducing(within_, "all_reduce", opts);
  return issue(named(OpType::ALLREDUCE, "all_reduce", tensors, tensors, opts),
               [&] { return tensor::all_reduce(tensor, asked); });
}

WorkPtr ProcessGroupLockstep::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const Tensor& tensor = only("all_reduce", tensors);
  const tensor::ReduceOptions asked = reducing(within_, "all_reduce", opts);
  return issue(named(OpType::_ALLREDUCE_SPARSE, "sparse_all_reduce", tensors, tensors, opts),
               [&] { return tensor::all_reduce(tensor, asked); });
}

WorkPtr ProcessGroupLockstep::allreduce_coalesced(Tensors& tensors,
                                                  const c10d::AllreduceCoalescedOptions& opts) {
  const tensor::ReduceOptions asked = reducing(within_, "all_reduce", opts);
  return issue(named(OpType::ALLREDUCE_COALESCED, "all_reduce", tensors, tensors, opts),
               [&] { return tensor::all_reduce_coalesced(tensors, asked); });
}

WorkPtr ProcessGroupLockstep::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const Tensor& tensor = only("reduce", tensors);
  const tensor::Reduction op = reduction(within_, "reduce", opts.reduceOp);
  return issue(named(OpType::REDUCE, "reduce", tensors, tensors, opts), [&] {
    return tensor::reduce(tensor, {.group_dst = root(opts),
                                   .op = op,
                                   .group = group(),
                                   .async_op = opts.asyncOp,
                                   .timeout = duration(opts.timeout)});
  });
}

WorkPtr ProcessGroupLockstep::allgather(TensorLists& outputs, Tensors& inputs,
                                        const c10d::AllgatherOptions& opts) {
  const Tensor& input = only("all_gather", inputs);
  const Tensors& list = only("all_gather", outputs);
  return issue(named(OpType::ALLGATHER, "all_gather", inputs, outputs, opts), [&] {
    return tensor::all_gather(list, apart(input, at_own(list, getRank())), plain(group(), opts));
  });
}

WorkPtr ProcessGroupLockstep::_allgather_base(Tensor& output, Tensor& input,
                                              const c10d::AllgatherOptions& opts) {
  return issue(named(OpType::_ALLGATHER_BASE, "_all_gather_base", input, output, opts),
               [&] { return tensor::all_gather_single(output, input, plain(group(), opts)); });
}

WorkPtr ProcessGroupLockstep::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                  const c10d::AllgatherOptions& opts) {
  return issue(named(OpType::ALLGATHER_COALESCED, "all_gather", inputs, outputs, opts), [&] {
    const auto own = static_cast<std::size_t>(getRank());
    Tensors given = inputs;
    for (std::size_t i = 0; own < outputs.size() && i < given.size(); ++i)
      given[i] = apart(given[i], at_own(outputs[own], static_cast<int>(i)));
    return tensor::all_gather_coalesced(outputs, given, plain(group(), opts));
  });
}

WorkPtr ProcessGroupLockstep::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                              const c10d::AllgatherOptions& opts) {
  check_pairs("all_gather_single_coalesced", outputs, inputs);
  std::vector<WorkPtr> works;
  for (const auto& places : by_type(inputs)) {
    const Tensors from = at_places(inputs, places);
    const Tensors to = at_places(outputs, places);
    works.push_back(issue(named(OpType::COALESCED, "all_gather", from, to, opts), [&] {
      tensor::Coalescing together(
          {.group = group(), .async_op = opts.asyncOp, .timeout = duration(opts.timeout)});
      for (std::size_t i = 0; i < places.size(); ++i) together.all_gather_single(to[i], from[i]);
      return together.launch();
    }));
  }
  return CoalescedWork::of_those_left(getRank(), std::move(works));
}

WorkPtr ProcessGroupLockstep::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  const Tensor& input = only("gather", inputs);
  const Tensors& list = outputs.empty() ? kNone : only("gather", outputs);
  return issue(named(OpType::GATHER, "gather", inputs, outputs, opts), [&] {
    return tensor::gather(apart(input, at_own(list, getRank())), list,
                          {.group_dst = root(opts),
                           .group = group(),
                           .async_op = opts.asyncOp,
                           .timeout = duration(opts.timeout)});
  });
}

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
// torch gives an empty output where there is none.
WorkPtr ProcessGroupLockstep::gather_single(Tensor& output, Tensor& input, const c10d::GatherOptions& opts) {
  const Tensor taken = root(opts) == getRank() ? output : Tensor();
  return issue(named(OpType::GATHER, "gather", input, output, opts), [&] {
    return tensor::gather_single(taken, input,
                                 {.group_dst = root(opts),
                                  .group = group(),
                                  .async_op = opts.asyncOp,
                                  .timeout = duration(opts.timeout)});
  });
}
#endif

WorkPtr ProcessGroupLockstep::scatter(Tensors& outputs, TensorLists& inputs,
                                      const c10d::ScatterOptions& opts) {
  const Tensor& output = only("scatter", outputs);
  const Tensors& list = inputs.empty() ? kNone : only("scatter", inputs);
  return issue(named(OpType::SCATTER, "scatter", list, outputs, opts), [&] {
    return tensor::scatter(output, own_apart(list, getRank(), output),
                           {.group_src = root(opts),
                            .group = group(),
                            .async_op = opts.asyncOp,
                            .timeout = duration(opts.timeout)});
  });
}

WorkPtr ProcessGroupLockstep::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                             const c10d::ReduceScatterOptions& opts) {
  const Tensor& output = only("reduce_scatter", outputs);
  const Tensors& list = only("reduce_scatter", inputs);
  const tensor::ReduceOptions asked = reducing(within_, "reduce_scatter", opts);
  return issue(named(OpType::REDUCE_SCATTER, "reduce_scatter", list, outputs, opts),
               [&] { return tensor::reduce_scatter(output, own_apart(list, getRank(), output), asked); });
}

WorkPtr ProcessGroupLockstep::_reduce_scatter_base(Tensor& output, Tensor& input,
                                                   const c10d::ReduceScatterOptions& opts) {
  const tensor::ReduceOptions asked = reducing(within_, "reduce_scatter_single", opts);
  return issue(named(OpType::_REDUCE_SCATTER_BASE, "_reduce_scatter_base", input, output, opts),
               [&] { return tensor::reduce_scatter_single(output, input, asked); });
}

WorkPtr ProcessGroupLockstep::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                              const c10d::ReduceScatterOptions& opts) {
  check_pairs("reduce_scatter_single_coalesced", outputs, inputs);
  const tensor::ReduceOptions asked = reducing(within_, "reduce_scatter_single_coalesced", opts);
  std::vector<WorkPtr> works;
  for (const auto& places : by_type(inputs)) {
    const Tensors from = at_places(inputs, places);
    const Tensors to = at_places(outputs, places);
    works.push_back(issue(named(OpType::COALESCED, "reduce_scatter", from, to, opts), [&] {
      tensor::Coalescing together(asked);
      for (std::size_t i = 0; i < places.size(); ++i) together.reduce_scatter_single(to[i], from[i]);
      return together.launch();
    }));
  }
  return CoalescedWork::of_those_left(getRank(), std::move(works));
}

WorkPtr ProcessGroupLockstep::alltoall_base(Tensor& output, Tensor& input,
                                            std::vector<std::int64_t>& output_sizes,
                                            std::vector<std::int64_t>& input_sizes,
                                            const c10d::AllToAllOptions& opts) {
  return issue(named(OpType::ALLTOALL_BASE, "all_to_all", input, output, opts), [&] {
    const bool is_flat =
        output_sizes.empty() && input_sizes.empty() && have_other_rows(output, input, getSize());
    return tensor::all_to_all_single(is_flat ? output.view(-1) : output, is_flat ? input.view(-1) : input,
                                     output_sizes, input_sizes, plain(group(), opts));
  });
}

WorkPtr ProcessGroupLockstep::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  return issue(named(OpType::ALLTOALL, "all_to_all", inputs, outputs, opts), [&] {
    const Tensor taken = at_own(outputs, getRank());
    return tensor::all_to_all(outputs, own_apart(inputs, getRank(), taken), plain(group(), opts));
  });
}

WorkPtr ProcessGroupLockstep::send(Tensors& tensors, int to, int tag) {
  const Tensor& tensor = only("send", tensors);
  const std::uint32_t number = tag_of("send", tag);
  return issue({.type = OpType::SEND, .name = "send", .inputs = tensors, .peer = to},
               [&] { return tensor::isend(tensor, {.group_dst = to, .group = group(), .tag = number}); });
}

WorkPtr ProcessGroupLockstep::recv(Tensors& tensors, int from, int tag) {
  const Tensor& tensor = only("recv", tensors);
  const std::uint32_t number = tag_of("recv", tag);
  return issue({.type = OpType::RECV, .name = "recv", .inputs = tensors, .output = tensors, .peer = from},
               [&] { return tensor::irecv(tensor, {.group_src = from, .group = group(), .tag = number}); });
}

WorkPtr ProcessGroupLockstep::recvAnysource(Tensors& tensors, int tag) {
  const Tensor& tensor = only("recv", tensors);
  const std::uint32_t number = tag_of("recv", tag);
  return issue({.type = OpType::RECVANYSOURCE,
                .name = "recvAnySource",
                .inputs = tensors,
                .output = tensors,
                .peer = -1},
               [&] { return tensor::irecv(tensor, {.group = group(), .tag = number}); });
}

WorkPtr ProcessGroupLockstep::barrier(const c10d::BarrierOptions& opts) {
  return issue(named(OpType::BARRIER, "barrier", kNone, kNone, opts),
               [&] { return tensor::barrier(plain(group(), opts)); });
}

void ProcessGroupLockstep::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  const Named call = {
      .type = OpType::BARRIER, .name = "monitored_barrier", .async_op = false, .timeout = opts.timeout};
  (void)issue(call, [&] {
    tensor::monitored_barrier(
        {.group = group(), .timeout = duration(opts.timeout), .wait_all_ranks = wait_all_ranks});
    return WorkHandle();
  });
}

std::uint32_t ProcessGroupLockstep::tag_of(const char* call, int tag) const {
  if (tag >= 0) return static_cast<std::uint32_t>(tag);
  throw_torch(Status::invalid(
      cat("rank ", within_.names->own(), ": ", call, ": the tag is ", tag, "; tags are not negative.")));
}

void ProcessGroupLockstep::check_pairs(const char* call, const Tensors& outputs,
                                       const Tensors& inputs) const {
  if (outputs.size() == inputs.size() && !inputs.empty()) return;
  throw_torch(Status::invalid(cat("rank ", within_.names->own(), ": ", call, " was given ", outputs.size(),
                                  " outputs and ", inputs.size(), " inputs.")));
}

}  // namespace lockstep::python
