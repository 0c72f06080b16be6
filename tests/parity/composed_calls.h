// The calls of collective_parity.py that are several in one, on our side (composed_calls.py has the other).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "parity_call.h"

namespace lockstep {

// Whether it is one of them: "batch", "scope_all_reduce", "monitored_barrier".
bool is_composed(const std::string& name);
std::vector<at::Tensor> run_composed(const ParityCall& call);

}  // namespace lockstep
