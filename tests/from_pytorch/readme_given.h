// What the first program of README.md uses and does not show: a network, and a loader of a few batches.
#pragma once

#include <lockstep/lockstep.h>

#include <cstdio>
#include <vector>

struct Net : torch::nn::Module {
  Net() { register_module("layer", layer); }
  at::Tensor forward(const at::Tensor& x) { return torch::log_softmax(layer(x), 1); }
  torch::nn::Linear layer{4, 3};
};

struct Loader {
  struct Batch {
    at::Tensor data = torch::randn({2, 4});
    at::Tensor target = torch::zeros({2}, at::kLong);
  };
  std::vector<Batch>::iterator begin() {
    batches.resize(3);
    return batches.begin();
  }
  std::vector<Batch>::iterator end() {
    std::printf("%zu batches\n", batches.size());
    return batches.end();
  }
  std::vector<Batch> batches;
};
inline Loader few_batches;
inline Loader* const loader = &few_batches;
