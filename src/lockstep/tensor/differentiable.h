// A collective as a step that autograd knows. Internal.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace lockstep::tensor {

// From the gradients of all outputs, zeros where there are none, to those of all inputs. Called with
// gradients that are recorded in turn, where the caller of backward() asked for that.
using Derivative = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& gradients)>;

// The outputs of `forward`, which autograd does not see. If one of the inputs requires a gradient, so do
// they: `derivative` is called once in every backward() through one of them, whether its result is needed
// here or not, because the other ranks need it. The outputs are new tensors.
std::vector<at::Tensor> differentiable(const std::vector<at::Tensor>& inputs,
                                       const std::function<std::vector<at::Tensor>()>& forward,
                                       Derivative derivative);

// Whether it would record: one of them requires a gradient, and they are not switched off.
bool records(const std::vector<at::Tensor>& inputs);

}  // namespace lockstep::tensor
