// What torch.autograd.gradcheck does, across ranks: the whole Jacobian of a function that is collective, by
// differences and by backward(), element by element.
//
// The inputs and outputs of all ranks are one vector each, of real numbers; a complex element is two. Every
// rank calls the function for every element, in step: the element is that of one rank, and the others take
// part with what they have.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <vector>

#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/groups.h"

namespace lockstep::tensor {

using CollectiveFunction = std::function<Tensors(const Tensors& inputs)>;

class Gradcheck {
 public:
  // float64 or complex128, on every rank, of any number and shape.
  Gradcheck(CollectiveFunction function, Tensors inputs)
      : function_(std::move(function)), inputs_(std::move(inputs)) {
    const at::NoGradGuard no_grad;
    ins_ = Place(numbers_in(inputs_));
    outs_ = Place(numbers_in(function_(inputs_)));
  }

  // The largest difference between the two Jacobians, on all ranks the same.
  double difference() const {
    const at::Tensor analytic = by_backward();
    EXPECT_TRUE(at::equal(analytic, by_backward())) << "a second backward() gives other bits";
    return (analytic - by_differences()).abs().max().item<double>();
  }

 private:
  static constexpr double kStep = 1e-6;  // as torch's

  // Where this rank's numbers are among those of all.
  struct Place {
    Place() = default;
    explicit Place(std::int64_t count) {
      const at::Tensor counts = at::zeros({get_world_size()}, at::kLong);
      counts[get_rank()] = count;
      all_reduce(counts);
      begin = counts.slice(0, 0, get_rank()).sum().item<std::int64_t>();
      end = begin + count;
      total = counts.sum().item<std::int64_t>();
    }
    bool has(std::int64_t index) const { return index >= begin && index < end; }
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t total = 0;
  };

  static std::int64_t numbers_in(const at::Tensor& tensor) {
    return tensor.numel() * (tensor.is_complex() ? 2 : 1);
  }
  static std::int64_t numbers_in(const Tensors& tensors) {
    std::int64_t count = 0;
    for (const at::Tensor& tensor : tensors) count += numbers_in(tensor);
    return count;
  }
  static at::Tensor flat(const Tensors& tensors) {
    Tensors parts{at::zeros({0}, at::kDouble)};
    for (const at::Tensor& tensor : tensors)
      parts.push_back((tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor).reshape({-1}));
    return at::cat(parts);
  }
  // Zeros in the shapes and types of `like`, and `value` at the number of this index.
  static Tensors one_hot(const Tensors& like, std::int64_t index, double value) {
    Tensors tensors;
    for (const at::Tensor& tensor : like) {
      const at::Tensor numbers = at::zeros({numbers_in(tensor)}, at::kDouble);
      if (index >= 0 && index < numbers.numel()) numbers[index] = value;
      index -= numbers.numel();
      tensors.push_back(tensor.is_complex() ? at::view_as_complex(numbers.view({-1, 2})).view(tensor.sizes())
                                            : numbers.view(tensor.sizes()));
    }
    return tensors;
  }

  at::Tensor by_differences() const {
    const at::NoGradGuard no_grad;
    const at::Tensor jacobian = at::zeros({outs_.total, ins_.total}, at::kDouble);
    const auto at_step = [&](std::int64_t index, double step) {
      const Tensors steps = one_hot(inputs_, ins_.has(index) ? index - ins_.begin : -1, step);
      Tensors moved;
      for (std::size_t i = 0; i < inputs_.size(); ++i) moved.push_back(inputs_[i] + steps[i]);
      return flat(function_(moved));
    };
    for (std::int64_t i = 0; i < ins_.total; ++i) {
      const at::Tensor slope = (at_step(i, kStep) - at_step(i, -kStep)) / (2 * kStep);
      jacobian.slice(0, outs_.begin, outs_.end).select(1, i).copy_(slope);
    }
    all_reduce(jacobian);
    return jacobian;
  }

  at::Tensor by_backward() const {
    const at::Tensor jacobian = at::zeros({outs_.total, ins_.total}, at::kDouble);
    Tensors leaves;
    for (const at::Tensor& input : inputs_) leaves.push_back(input.clone().requires_grad_());
    const Tensors outputs = function_(leaves);
    for (std::int64_t o = 0; o < outs_.total; ++o) {
      const Tensors weights = one_hot(outputs, outs_.has(o) ? o - outs_.begin : -1, 1);
      Tensors gradients = torch::autograd::grad(outputs, leaves, weights, /*retain_graph=*/true,
                                                /*create_graph=*/false, /*allow_unused=*/true);
      for (std::size_t i = 0; i < leaves.size(); ++i) {
        if (!gradients[i].defined()) gradients[i] = at::zeros_like(leaves[i]);
        EXPECT_EQ(gradients[i].sizes(), leaves[i].sizes());
        EXPECT_EQ(gradients[i].scalar_type(), leaves[i].scalar_type());
      }
      jacobian.select(0, o).slice(0, ins_.begin, ins_.end).copy_(flat(gradients));
    }
    all_reduce(jacobian);
    return jacobian;
  }

  const CollectiveFunction function_;
  const Tensors inputs_;
  Place ins_;
  Place outs_;
};

// The first derivatives as a function of the inputs and of the gradients of the outputs, which come behind
// them: as torch.autograd.gradgradcheck makes it.
inline CollectiveFunction derivative_of(const CollectiveFunction& function, std::size_t inputs) {
  return [function, inputs](const Tensors& given) {
    const at::AutoGradMode recorded(true);
    Tensors all;
    for (const at::Tensor& tensor : given)
      all.push_back(tensor.requires_grad() ? tensor : tensor.clone().requires_grad_());
    const Tensors leaves(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(inputs));
    const Tensors weights(all.begin() + static_cast<std::ptrdiff_t>(inputs), all.end());
    return torch::autograd::grad(function(leaves), leaves, weights, true, /*create_graph=*/true);
  };
}

}  // namespace lockstep::tensor
