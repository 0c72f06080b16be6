#include "wrong_calls.h"

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <vector>

#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/groups.h"
#include "lockstep/tensor/init.h"
#include "lockstep/tensor/messages.h"

namespace lockstep {
namespace {

using tensor::SplitSizes;
using tensor::Tensors;

using Function = std::function<void(const WrongCall& call)>;

Tensors copies(const at::Tensor& tensor, int count) {
  return Tensors(static_cast<std::size_t>(count), tensor);
}

void bad_splits(const WrongCall& call) {
  const auto n = static_cast<std::size_t>(call.size);
  all_to_all_single(at::ones(call.size), at::ones(call.size), SplitSizes(n, 1), SplitSizes(n, 2));
}

void two_groups_in_batch(const WrongCall& call) {
  const int other = (call.rank + 1) % call.size;
  batch_isend_irecv({P2POp::isend(at::ones(2), {.dst = other}),
                     P2POp::isend(at::ones(2), {.dst = other, .group = call.all})});
}

void destroyed_group(const WrongCall&) {
  const ProcessGroup group = new_group();
  destroy_process_group(group);
  all_reduce(at::ones(2), {.group = group});
}

const std::map<std::string, Function>& functions() {
  static const std::map<std::string, Function> all = {
      {"short_list", [](const auto&) { all_gather({at::ones(2)}, at::ones(2)); }},
      {"long_list",
       [](const auto& call) { reduce_scatter(at::ones(2), copies(at::ones(2), call.size + 1)); }},
      {"mixed_types",
       [](const auto& call) { all_gather(copies(at::ones(2, at::kInt), call.size), at::ones(2)); }},
      {"no_root", [](const auto&) { broadcast(at::ones(2), {}); }},
      {"two_roots", [](const auto&) { broadcast(at::ones(2), {.src = 0, .group_src = 0}); }},
      {"root_out_of_range", [](const auto& call) { broadcast(at::ones(2), {.src = call.size}); }},
      {"negative_root", [](const auto&) { reduce(at::ones(2), {.dst = -1}); }},
      {"group_root_out_of_range", [](const auto& call) { broadcast(at::ones(2), {.group_src = call.size}); }},
      {"float_band", [](const auto&) { all_reduce(at::ones(2), {.op = ReduceOp::kBand}); }},
      {"complex_min",
       [](const auto&) { reduce(at::ones(2, at::kComplexFloat), {.dst = 0, .op = ReduceOp::kMin}); }},
      {"bool_avg", [](const auto&) { all_reduce(at::ones(2, at::kBool), {.op = ReduceOp::kAvg}); }},
      {"sparse_max", [](const auto&) { all_reduce(at::ones(2).to_sparse(), {.op = ReduceOp::kMax}); }},
      {"wrong_output_size",
       [](const auto& call) { all_gather_single(at::ones(2 * call.size + 1), at::ones(2)); }},
      {"bad_splits", bad_splits},
      {"expanded", [](const auto&) { all_reduce(at::ones(1).expand(4)); }},
      {"lists_where_none_belong",
       [](const auto& call) {
         gather(at::ones(2), call.rank != 0 ? copies(at::ones(2), call.size) : Tensors(), {.dst = 0});
       }},
      {"send_to_self", [](const auto& call) { send(at::ones(2), {.dst = call.rank}); }},
      {"recv_from_self", [](const auto& call) { recv(at::ones(2), {.src = call.rank}); }},
      {"empty_batch", [](const auto&) { batch_isend_irecv({}); }},
      {"two_groups_in_batch", two_groups_in_batch},
      {"group_rank_of_stranger",
       [](const auto& call) {
         get_group_rank(call.pair.is_member() ? call.pair : ProcessGroup(), call.size);
       }},
      {"group_of_stranger",
       [](const auto& call) {
         new_group({0, call.size});
       }},
      {"destroyed_group", destroyed_group},
      {"subgroups_too_large", [](const auto& call) { new_subgroups(call.size + 1); }}};
  return all;
}

}  // namespace

void run_wrong(const WrongCall& call) { functions().at(call.name)(call); }

}  // namespace lockstep
