#include "wrong_calls.h"

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/tensor/coalescing.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/groups.h"
#include "lockstep/tensor/init.h"
#include "lockstep/tensor/messages.h"
#include "lockstep/tensor/objects.h"

namespace lockstep {
namespace {

using tensor::SplitSizes;
using tensor::Tensors;

using WrongFunction = std::function<void(const WrongCall& call)>;

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

void scope_of_two_kinds(const WrongCall& call) {
  Coalescing together;
  together.all_reduce(at::ones(2));
  together.all_gather_single(at::ones(2 * call.size), at::ones(2));
}

void scope_of_two_types(const WrongCall&) {
  Coalescing together;
  together.all_reduce(at::ones(2));
  together.all_reduce(at::ones(2, at::kInt));
}

void scope_of_wrong_size(const WrongCall& call) {
  Coalescing together;
  together.all_gather_single(at::ones(3 * call.size), at::ones(2));
}

std::vector<Tensors> lists(int count, const at::Tensor& tensor) {
  return std::vector<Tensors>(static_cast<std::size_t>(count), Tensors{tensor});
}

int next(const WrongCall& call) { return (call.rank + 1) % call.size; }

const std::map<std::string, WrongFunction>& coalesced_and_rooted() {
  static const std::map<std::string, WrongFunction> all = {
      {"few_lists_coalesced",
       [](const auto& call) { all_gather_coalesced(lists(call.size - 1, at::ones(2)), {at::ones(2)}); }},
      {"few_tensors_coalesced",
       [](const auto& call) {
         all_gather_coalesced(lists(call.size, at::ones(2)), {at::ones(2), at::ones(2)});
       }},
      {"none_coalesced",
       [](const auto& call) {
         all_gather_coalesced(std::vector<Tensors>(static_cast<std::size_t>(call.size)), Tensors());
       }},
      {"mixed_types_coalesced",
       [](const auto& call) {
         all_gather_coalesced(lists(call.size, at::ones(2, at::kInt)), {at::ones(2)});
       }},
      {"wrong_size_coalesced",
       [](const auto& call) { all_gather_coalesced(lists(call.size, at::ones(5)), {at::ones(2)}); }},
      {"scope_of_two_kinds", scope_of_two_kinds},
      {"scope_of_two_types", scope_of_two_types},
      {"scope_of_wrong_size", scope_of_wrong_size},
      {"gather_group_root_out_of_range",
       [](const auto& call) { gather(at::ones(2), {}, {.group_dst = call.size}); }},
      {"scatter_negative_group_root", [](const auto&) { scatter(at::ones(2), {}, {.group_src = -1}); }},
      {"reduce_two_roots", [](const auto&) { reduce(at::ones(2), {.dst = 0, .group_dst = 0}); }},
      {"message_to_two_peers",
       [](const auto& call) { isend(at::ones(2), {.dst = next(call), .group_dst = next(call)}); }},
      {"batch_to_two_peers",
       [](const auto& call) {
         batch_isend_irecv({P2POp::isend(at::ones(2), {.dst = next(call), .group_dst = next(call)})});
       }},
      {"batch_to_nobody", [](const auto&) { batch_isend_irecv({P2POp::isend(at::ones(2), {})}); }},
      {"subgroups_that_overlap",
       [](const auto&) {
         new_subgroups_by_enumeration({{0, 1}, {1, 0}});
       }},
      {"no_subgroups", [](const auto&) { new_subgroups_by_enumeration({}); }},
      {"subgroup_of_stranger",
       [](const auto& call) {
         new_subgroups_by_enumeration({std::vector<int>{0, call.size}});
       }},
      {"empty_subgroup", [](const auto&) { new_subgroups_by_enumeration({std::vector<int>()}); }}};
  return all;
}

const std::map<std::string, WrongFunction>& of_objects() {
  using Objects = std::vector<std::string>;
  static const auto broadcast = [](Objects objects, const ObjectFromRootOptions& options) {
    broadcast_object_list(objects, options);
  };
  static const auto scatter = [](const ObjectFromRootOptions& options) {
    std::string output;
    scatter_object_list(output, {}, options);
  };
  static const std::map<std::string, WrongFunction> all = {
      {"objects_from_two_roots", [](const auto&) { broadcast({"object"}, {.src = 0, .group_src = 0}); }},
      {"objects_from_out_of_range", [](const auto& call) { broadcast({"object"}, {.src = call.size}); }},
      {"objects_from_group_out_of_range",
       [](const auto& call) { broadcast({"object"}, {.group_src = call.size}); }},
      {"objects_to_two_roots",
       [](const auto&) {
         Objects list;
         gather_object("object", list, {.dst = 0, .group_dst = 0});
       }},
      {"scattered_objects_two_roots", [](const auto&) { scatter({.src = 0, .group_src = 0}); }},
      {"scattered_objects_negative_root", [](const auto&) { scatter({.src = -1}); }},
      {"objects_to_self", [](const auto& call) { send_object_list(Objects{"object"}, {.dst = call.rank}); }},
      {"objects_from_self",
       [](const auto& call) {
         Objects list{"object"};
         recv_object_list(list, {.src = call.rank});
       }},
      {"objects_to_nobody", [](const auto&) { send_object_list(Objects{"object"}, {}); }},
      {"no_objects_to_send", [](const auto& call) { send_object_list(Objects(), {.dst = next(call)}); }},
      {"no_objects_to_broadcast", [](const auto& call) { broadcast({}, {.src = call.rank}); }}};
  return all;
}

const std::map<std::string, WrongFunction>& plain() {
  static const std::map<std::string, WrongFunction> all = {
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

void run_wrong(const WrongCall& call) {
  for (const auto* const functions : {&plain(), &coalesced_and_rooted(), &of_objects()}) {
    if (const auto found = functions->find(call.name); found != functions->end()) return found->second(call);
  }
  throw std::out_of_range("there is no wrong call " + call.name);
}

}  // namespace lockstep
