#include "composed_calls.h"

#include <ATen/ATen.h>

#include <chrono>
#include <map>

#include "lockstep/tensor/coalescing.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/groups.h"
#include "lockstep/tensor/messages.h"

namespace lockstep {
namespace {

using tensor::Tensors;
using Sizes = std::vector<std::int64_t>;

// Not short: the time in which rank 0 asks, alone, who has come.
constexpr std::chrono::milliseconds kMissingWait{100};

// With one more dimension, so that two tensors of a call differ in shape.
Sizes longer(Sizes sizes) {
  sizes.push_back(2);
  return sizes;
}
Sizes whole(const ParityCall& call, Sizes sizes) {
  sizes[0] *= call.size;
  return sizes;
}
// This rank's part of what all_gather_single() fills.
at::Tensor own_part(const ParityCall& call, const at::Tensor& all) {
  const std::int64_t rows = all.size(0) / call.size;
  return all.slice(0, call.rank * rows, (call.rank + 1) * rows);
}

Tensors gather_coalesced(const ParityCall& call) {
  std::vector<Tensors> lists;
  Tensors flat;
  for (int r = 0; r < call.size; ++r) {
    lists.push_back({call.empty(call.sizes), call.empty(longer(call.sizes))});
    flat.insert(flat.end(), lists.back().begin(), lists.back().end());
  }
  all_gather_coalesced(lists, {call.make(0, call.sizes), call.make(1, longer(call.sizes))},
                       {.group = call.group, .async_op = call.async_op})
      .wait();
  return flat;
}

SendOptions to_next(const ParityCall& call, std::uint64_t tag = 0) {
  SendOptions options{.group = call.group, .tag = tag};
  if (call.group_root) {
    options.group_dst = (call.rank + 1) % call.size;
  } else {
    options.dst = call.next();
  }
  return options;
}
RecvOptions from_previous(const ParityCall& call, std::uint64_t tag = 0) {
  RecvOptions options{.group = call.group, .tag = tag};
  if (call.group_root) {
    options.group_src = (call.rank + call.size - 1) % call.size;
  } else {
    options.src = call.previous();
  }
  return options;
}

// Two messages between each pair, in their order.
Tensors batch(const ParityCall& call) {
  const Tensors outputs{call.empty(call.sizes), call.empty(longer(call.sizes))};
  const std::vector<P2POp> ops = {P2POp::isend(call.make(0, call.sizes), to_next(call)),
                                  P2POp::irecv(outputs[0], from_previous(call)),
                                  P2POp::isend(call.make(1, longer(call.sizes)), to_next(call)),
                                  P2POp::irecv(outputs[1], from_previous(call))};
  for (const WorkHandle& work : batch_isend_irecv(ops)) work.wait();
  return outputs;
}

// Received in the other order than that in which they were sent.
Tensors tags(const ParityCall& call) {
  const auto tag = 2 * static_cast<std::uint64_t>(call.number);
  const Tensors outputs{call.empty(call.sizes), call.empty(call.sizes)};
  const std::vector<WorkHandle> works = {isend(call.make(0, call.sizes), to_next(call, tag)),
                                         isend(call.make(1, call.sizes), to_next(call, tag + 1)),
                                         irecv(outputs[1], from_previous(call, tag + 1)),
                                         irecv(outputs[0], from_previous(call, tag))};
  for (const WorkHandle& work : works) work.wait();
  return outputs;
}

ReduceOptions scope_options(const ParityCall& call) {
  return {.op = call.op, .group = call.group, .async_op = call.async_op};
}

Tensors scope_all_reduce(const ParityCall& call) {
  const Tensors two{call.make(0, call.sizes), call.make(1, longer(call.sizes))};
  Coalescing together(scope_options(call));
  for (const at::Tensor& tensor : two) together.all_reduce(tensor);
  together.launch().wait();
  return two;
}

Tensors scope_all_gather(const ParityCall& call) {
  const Tensors outputs{call.empty(whole(call, call.sizes)), call.empty(whole(call, longer(call.sizes)))};
  const at::Tensor own = own_part(call, outputs[1]);
  own.copy_(call.make(1, longer(call.sizes)));
  Coalescing together(scope_options(call));
  together.all_gather_single(outputs[0], call.make(0, call.sizes));
  together.all_gather_single(outputs[1], own);
  together.launch().wait();
  return outputs;
}

Tensors scope_reduce_scatter(const ParityCall& call) {
  const at::Tensor output = call.empty(call.sizes);
  const at::Tensor input = call.make(1, whole(call, longer(call.sizes)));
  const at::Tensor own = own_part(call, input);
  Coalescing together(scope_options(call));
  together.reduce_scatter_single(output, call.make(0, whole(call, call.sizes)));
  together.reduce_scatter_single(own, input);
  together.launch().wait();
  return {output, own};
}

Tensors missing_at_barrier(const ParityCall&) {
  const ProcessGroup group = new_group();
  if (group.rank() != 0) return {};
  std::vector<std::int64_t> missing;
  try {
    monitored_barrier({.group = group, .timeout = kMissingWait, .wait_all_ranks = true});
  } catch (const MissingRanks& error) {
    for (const Rank rank : error.missing()) missing.push_back(rank.value);
  }
  return {at::tensor(missing)};
}

// The first and the last rank, and the others.
Tensors subgroups(const ParityCall& call) {
  std::vector<std::vector<int>> lists{{0, call.size - 1}};
  if (call.size > 2) lists.emplace_back();
  for (int r = 1; r < call.size - 1; ++r) lists.back().push_back(r);
  const Subgroups made = new_subgroups_by_enumeration(lists);
  const at::Tensor sum = call.make(0, call.sizes);
  all_reduce(sum, {.group = made.current});
  const std::vector<int> ranks = made.current.ranks();
  return {sum, at::tensor(std::vector<std::int64_t>(ranks.begin(), ranks.end())),
          at::scalar_tensor(static_cast<double>(made.ranks.size()))};
}

using Function = Tensors (*)(const ParityCall&);

const std::map<std::string, Function>& functions() {
  static const std::map<std::string, Function> all = {{"all_gather_coalesced", gather_coalesced},
                                                      {"batch", batch},
                                                      {"tags", tags},
                                                      {"scope_all_reduce", scope_all_reduce},
                                                      {"scope_all_gather_single", scope_all_gather},
                                                      {"scope_reduce_scatter_single", scope_reduce_scatter},
                                                      {"monitored_barrier",
                                                       [](const ParityCall& call) {
                                                         monitored_barrier({.group = call.group});
                                                         return Tensors();
                                                       }},
                                                      {"missing_at_barrier", missing_at_barrier},
                                                      {"subgroups_by_enumeration", subgroups}};
  return all;
}

}  // namespace

bool is_composed(const std::string& name) { return functions().contains(name); }

std::vector<at::Tensor> run_composed(const ParityCall& call) { return functions().at(call.name)(call); }

}  // namespace lockstep
