// What the functional collectives share. Internal.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "lockstep/tensor/differentiable.h"
#include "lockstep/tensor/functional.h"
#include "lockstep/tensor/operation.h"

namespace lockstep::tensor::functional {

inline Argument nth(const char* name, std::size_t index) { return {name, static_cast<int>(index)}; }
inline std::size_t count_of(const Operation& op) { return static_cast<std::size_t>(op.size()); }

inline at::Tensor copy_of(const at::Tensor& tensor) { return tensor.clone(at::MemoryFormat::Contiguous); }
inline at::Tensor empty_of(at::IntArrayRef shape, const at::Tensor& like) {
  return at::empty(shape, like.options());
}
inline at::Tensor empty_as(const at::Tensor& like) { return empty_of(like.sizes(), like); }

inline Shapes shapes_of(const Tensors& tensors) {
  Shapes shapes;
  for (const at::Tensor& tensor : tensors) shapes.push_back(tensor.sizes().vec());
  return shapes;
}

// The group itself, so that backward() meets the same even if the default group is another by then.
template <typename Any>
Any pinned(const Operation& op, Any options) {
  options.group = ProcessGroup(op.state());
  return options;
}

inline void check_gradient(const Operation& op, const Reduction& reduction, const Tensors& inputs) {
  const bool linear = reduction.op == ReduceOp::kSum || reduction.op == ReduceOp::kAvg ||
                      reduction.op == ReduceOp::kPremulSum;
  if (!linear && records(inputs))
    op.refuse("op: only sum, avg and premul_sum have a gradient, and an input requires one.");
}

// What an element of this rank counts in the result.
inline at::Tensor weighted(const at::Tensor& gradient, const Reduction& reduction, int size) {
  if (reduction.op == ReduceOp::kAvg) return gradient.div(size);
  return reduction.op == ReduceOp::kPremulSum ? gradient.mul(reduction.factor) : gradient;
}
inline Tensors weighted(Tensors gradients, const Reduction& reduction, int size) {
  for (at::Tensor& gradient : gradients) gradient = weighted(gradient, reduction, size);
  return gradients;
}

inline void check_all(const Operation& op, const char* name, const Tensors& tensors) {
  if (tensors.empty()) op.refuse(name, " is empty.");
  for (std::size_t i = 0; i < tensors.size(); ++i) op.check_tensor(tensors[i], nth(name, i));
}

}  // namespace lockstep::tensor::functional
