#include "functional_calls.h"

#include <ATen/ATen.h>

#include <map>
#include <numeric>

#include "lockstep/tensor/functional.h"

namespace lockstep {
namespace {

namespace F = lockstep::functional;
using tensor::SplitSizes;
using tensor::Tensors;
using Sizes = std::vector<std::int64_t>;

constexpr int kFirstWeight = 10;

Tensors parts(const ParityCall& call) {
  Tensors list;
  for (int r = 0; r < call.size; ++r) list.push_back(call.make(r, call.sizes));
  return list;
}

// Rank a sends b + 1 times the rows to rank b.
SplitSizes sent_rows(const ParityCall& call) {
  SplitSizes rows;
  for (int r = 0; r < call.size; ++r) rows.push_back(call.sizes[0] * (r + 1));
  return rows;
}
SplitSizes received_rows(const ParityCall& call) {
  return SplitSizes(static_cast<std::size_t>(call.size), call.sizes[0] * (call.rank + 1));
}

Tensors inputs_of(const ParityCall& call) {
  Sizes sizes = call.sizes;
  if (call.name == "nn_scatter" || call.name == "nn_reduce_scatter" || call.name == "nn_all_to_all")
    return parts(call);
  if (call.name.ends_with("all_to_all_single")) {
    const SplitSizes rows = sent_rows(call);
    sizes[0] = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  }
  if (call.name == "functional_reduce_scatter_single") sizes.back() *= call.size;
  const at::Tensor input = call.make(0, sizes);
  return {call.name == "functional_permute_tensor" ? input.flatten() : input};
}

using FunctionalCall = std::function<Tensors(const ParityCall& call, const Tensors& x)>;

const std::map<std::string, FunctionalCall>& functional_calls() {
  static const FunctionalCall all_to_all_rows = [](const auto& call, const auto& x) {
    return Tensors{F::all_to_all_single(x[0], received_rows(call), sent_rows(call))};
  };
  static const FunctionalCall all_reduced = [](const auto&, const auto& x) {
    return Tensors{F::all_reduce(x[0])};
  };
  static const std::map<std::string, FunctionalCall> all = {
      {"nn_all_reduce", all_reduced},
      {"nn_broadcast",
       [](const auto& call, const auto& x) { return Tensors{F::broadcast(x[0], {.src = call.root})}; }},
      {"nn_reduce",
       [](const auto& call, const auto& x) { return Tensors{F::reduce(x[0], {.dst = call.root})}; }},
      {"nn_all_gather", [](const auto&, const auto& x) { return F::all_gather(x[0]); }},
      {"nn_gather", [](const auto& call, const auto& x) { return F::gather(x[0], {.dst = call.root}); }},
      {"nn_scatter",
       [](const auto& call, const auto& x) { return Tensors{F::scatter(x, {.src = call.root})}; }},
      {"nn_reduce_scatter", [](const auto&, const auto& x) { return Tensors{F::reduce_scatter(x)}; }},
      {"nn_all_to_all", [](const auto&, const auto& x) { return F::all_to_all(x); }},
      {"nn_all_to_all_single", all_to_all_rows},
      {"functional_all_reduce", all_reduced},
      {"functional_all_gather_single",
       [](const auto&, const auto& x) { return Tensors{F::all_gather_single(x[0], -1)}; }},
      {"functional_reduce_scatter_single",
       [](const auto&, const auto& x) { return Tensors{F::reduce_scatter_single(x[0], -1)}; }},
      {"functional_all_to_all_single", all_to_all_rows},
      {"functional_permute_tensor", [](const auto&, const auto& x) {
         return Tensors{F::permute_tensor(x[0], {1, 2, 0})};
       }}};
  return all;
}

}  // namespace

bool is_functional(const std::string& name) { return functional_calls().contains(name); }

std::vector<at::Tensor> run_functional(const ParityCall& call) {
  const Tensors inputs = inputs_of(call);
  for (const at::Tensor& input : inputs) input.requires_grad_();
  const Tensors outputs = functional_calls().at(call.name)(call, inputs);
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor weights = call.make(kFirstWeight + static_cast<int>(i), outputs[i].sizes().vec());
    loss = loss + (weights * outputs[i]).sum();
  }
  loss.backward();
  Tensors answers;
  // What a reduce leaves elsewhere is not compared.
  if (call.name != "nn_reduce" || call.is_root()) {
    for (const at::Tensor& output : outputs) answers.push_back(output.detach());
  }
  for (const at::Tensor& input : inputs) answers.push_back(input.grad());
  return answers;
}

}  // namespace lockstep
