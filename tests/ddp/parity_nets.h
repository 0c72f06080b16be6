// The nets of parity.py, on our side; parity_nets.py says what each of them has.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>

namespace lockstep::testing {

class ParityNet : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& x, bool use_c, bool use_d) = 0;
};

// By its name there: "net", "wide".
std::shared_ptr<ParityNet> make_parity_net(const std::string& name);

}  // namespace lockstep::testing
