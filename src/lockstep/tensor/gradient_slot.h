// A GradientSlot is where one parameter's gradient is, and when it is final.
//
// Data parallelism reads and writes gradients through it alone, so that it need not know who keeps them. The
// default is the parameter's own `.grad`. Whoever keeps gradients elsewhere (per context, as distributed
// autograd), or has a local part that stands for the parameter (as tensor parallelism), brings another.
//
// Thread safety: calls for one parameter come one at a time, but for its destruction, which may come from any
// thread between two backward passes.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace torch::autograd {
struct Node;
}

namespace lockstep::tensor {

class GradientSlot {
 public:
  virtual ~GradientSlot() = default;

  // What the gradient has the shape, type and device of: the parameter, or its local part.
  virtual at::Tensor local() const = 0;
  // Undefined if there is none.
  virtual at::Tensor gradient() const = 0;
  virtual void set_gradient(const at::Tensor& gradient) = 0;
  // Whether set_gradient() may be given memory that the caller goes on to use, and later backward passes
  // accumulate there. Else it is given a copy. May change between two passes: while somebody else hears of
  // the parameter's gradients too, nobody may.
  virtual bool may_alias() const = 0;
  // The node of the graph that accumulates the gradient: who reaches it, uses the parameter.
  virtual const torch::autograd::Node* accumulator() const = 0;
  // Calls `then` on autograd's thread in every backward pass, each time that a gradient was accumulated, as
  // long as the slot lives. Called once.
  virtual void when_accumulated(std::function<void()> then) = 0;
  // A parameter that is loaded, or converted to another type and back, is accumulated by another node in the
  // graphs of later forwards. Goes over to that one, and leaves none alone; true if there is another. Called
  // before forward.
  virtual bool follow() = 0;
};

using GradientSlotMaker = std::function<std::unique_ptr<GradientSlot>(const at::Tensor& parameter)>;

// The parameter's own `.grad`.
std::unique_ptr<GradientSlot> own_gradient(const at::Tensor& parameter);

}  // namespace lockstep::tensor

namespace lockstep {
using tensor::GradientSlot;
using tensor::GradientSlotMaker;
}  // namespace lockstep
