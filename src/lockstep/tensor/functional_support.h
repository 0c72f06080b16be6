// What the functional collectives share. Internal.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <exception>

#include "lockstep/tensor/differentiable.h"
#include "lockstep/tensor/functional.h"
#include "lockstep/tensor/operation.h"
#include "lockstep/tensor/shapes.h"

namespace lockstep::tensor::functional {

inline Argument nth(const char* name, std::size_t index) { return {name, static_cast<int>(index)}; }
inline std::size_t count_of(const Operation& op) { return static_cast<std::size_t>(op.size()); }

// How the tensors of a call are called in its errors: by their place in a list, or one alone.
using Naming = Argument (*)(std::size_t index);
inline Argument the_tensor(std::size_t /*index*/) { return {"tensor"}; }
inline Argument of_tensors(std::size_t index) { return nth("tensors", index); }
inline Argument of_input_list(std::size_t index) { return nth("input_list", index); }

// InvalidArgument for a shape that no tensor has.
inline void check_shape(const Operation& op, const Argument& argument, at::IntArrayRef shape,
                        std::int64_t element_size) {
  const std::string problem = shape_problem(shape, element_size);
  if (!problem.empty()) op.refuse(argument.text(), ": ", problem);
}
// A new tensor of this shape, which is named for it. OutOfResources.
inline at::Tensor empty_of(const Operation& op, const Argument& argument, at::IntArrayRef shape,
                           const at::Tensor& like) {
  check_shape(op, argument, shape, static_cast<std::int64_t>(like.element_size()));
  try {
    return at::empty(shape, like.options());
  } catch (const std::exception&) {
    op.throw_no_memory(cat("the result for ", argument.text()));
  }
}
inline at::Tensor copy_of(const Operation& op, const Argument& argument, const at::Tensor& tensor) {
  try {
    return tensor.clone(at::MemoryFormat::Contiguous);
  } catch (const std::exception&) {
    op.throw_no_memory(cat("a copy of ", argument.text()));
  }
}

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

inline void check_all(const Operation& op, Naming naming, const Tensors& tensors) {
  if (tensors.empty()) op.refuse(naming(0).name, " is empty.");
  for (std::size_t i = 0; i < tensors.size(); ++i) op.check_tensor(tensors[i], naming(i));
}

}  // namespace lockstep::tensor::functional
