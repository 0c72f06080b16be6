// The models of `lockstep bench ddp`, in C++.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>

#include "tools/bench/training_case.h"

namespace lockstep::bench {

struct Example {
  at::Tensor input = {};
  at::Tensor target = {};
};

class TrainedNet : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& input) = 0;
  virtual at::Tensor loss(const at::Tensor& output, const at::Tensor& target) const = 0;
  // `count` examples, the same for the same seed.
  virtual Example examples(std::int64_t count, std::uint64_t seed) const = 0;
};

// With weights that depend on nothing but the model: those with two dimensions or more are random numbers of
// a variance of one over their inputs, with the parameter's number as seed; biases are zero, the others one.
std::shared_ptr<TrainedNet> make_trained_net(const TrainingModel& model);

}  // namespace lockstep::bench
