// The calls of collective_parity.py that have gradients, on our side (differentiable_calls.py has the other).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace lockstep {

struct FunctionalCall {
  std::string name;
  int rank;
  int size;
  int root;
  std::vector<std::int64_t> sizes;
  // The numbers of this rank.
  std::function<at::Tensor(int part, const std::vector<std::int64_t>& sizes)> make;
};

// Whether it is one of them: "nn_all_reduce", "functional_permute_tensor".
bool is_functional(const std::string& name);
// Its outputs, then the gradients of its inputs.
std::vector<at::Tensor> run_functional(const FunctionalCall& call);

}  // namespace lockstep
