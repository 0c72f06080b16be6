// A small net whose second layer may be left unused, for tests of what goes wrong.
#pragma once

#include <torch/nn/modules/linear.h>

namespace lockstep::testing {

struct Two : torch::nn::Module {
  Two() {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x, bool use_second = true) {
    return use_second ? second(first(x)) : first(x);
  }
  torch::nn::Linear first{2, 2};
  torch::nn::Linear second{2, 2};
};

// What it takes.
inline at::Tensor ones() { return torch::ones({1, 2}); }

}  // namespace lockstep::testing
