// For the tests of init.h and groups.h.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/tensor/functional.h"
#include "lockstep/tensor/messages.h"
#include "lockstep/tensor/objects.h"
#include "lockstep/tensor/process_group.h"
#include "lockstep/tensor/tensor_test_support.h"

namespace lockstep::tensor {

// The sum of what every rank of the group has: its rank in the world + 1.
inline void expect_sum(const ProcessGroup& group, double sum) {
  const at::Tensor tensor = at::full({3}, get_rank() + 1, at::kDouble);
  all_reduce(tensor, {.group = group});
  EXPECT_TRUE(all_equal(tensor, sum)) << tensor;
}

// A call of each kind, by its name.
struct NamedCall {
  const char* name;
  std::function<void(const ProcessGroup& group)> call;
};
inline const std::vector<NamedCall>& calls_of_every_kind() {
  static const at::Tensor t = at::ones({2});
  static std::vector<std::string> texts(2);
  static const std::vector<NamedCall> all = {
      {"all_reduce", [](const auto& group) { all_reduce(t, {.group = group}); }},
      {"all_reduce", [](const auto& group) { all_reduce(t, {.group = group, .async_op = true}); }},
      {"all_reduce", [](const auto& group) { all_reduce(at::ones({2}).to_sparse(), {.group = group}); }},
      {"broadcast", [](const auto& group) { broadcast(t, {.group_src = 0, .group = group}); }},
      {"all_gather",
       [](const auto& group) {
         all_gather({t.clone(), t.clone()}, t, {.group = group});
       }},
      {"barrier", [](const auto& group) { barrier({.group = group}); }},
      {"monitored_barrier", [](const auto& group) { monitored_barrier({.group = group}); }},
      {"send", [](const auto& group) { send(t, {.group_dst = 1 - get_rank(), .group = group}); }},
      {"recv", [](const auto& group) { recv(t, {.group = group}); }},
      {"isend", [](const auto& group) { isend(t, {.group_dst = 0, .group = group}).wait(); }},
      {"irecv", [](const auto& group) { irecv(t, {.group_src = 0, .group = group}).wait(); }},
      {"batch_isend_irecv",
       [](const auto& group) { batch_isend_irecv({P2POp::irecv(t, {.group = group})}).at(0).wait(); }},
      {"all_gather_object",
       [](const auto& group) { all_gather_object(texts, std::string("x"), {.group = group}); }},
      {"broadcast_object_list", [](const auto& group) { broadcast_object_list(texts, {.group = group}); }},
      {"all_reduce", [](const auto& group) { functional::all_reduce(t, {.group = group}); }}};
  return all;
}

}  // namespace lockstep::tensor
