// The object collectives of collective_parity.py, on our side (object_calls.py has the other).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "parity_call.h"

namespace lockstep {

// Whether it is one of them: "all_gather_object".
bool is_object_call(const std::string& name);
// What the objects are made of.
std::vector<at::Tensor> run_object_call(const ParityCall& call);

}  // namespace lockstep
