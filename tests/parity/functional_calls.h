// The calls of collective_parity.py that have gradients, on our side (differentiable_calls.py has the other).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "parity_call.h"

namespace lockstep {

// Whether it is one of them: "nn_all_reduce", "functional_permute_tensor".
bool is_functional(const std::string& name);
// Its outputs, then the gradients of its inputs.
std::vector<at::Tensor> run_functional(const ParityCall& call);

}  // namespace lockstep
