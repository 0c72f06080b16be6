// Small networks of every kind that data parallelism is tested with. Each makes its own batches, from a rank
// and a step, and gives its loss.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace lockstep::testing {

class Net : public torch::nn::Module {
 public:
  using Batch = std::vector<at::Tensor>;
  virtual at::Tensor forward(const Batch& batch) = 0;
  virtual Batch batch(int rank, int step) const = 0;
};

// "mlp", "cnn" (with BatchNorm), "lstm", "embedding" (sparse gradients), "gpt", "branches" (two of three
// steps leave a branch unused, the last of them another on odd ranks), "same_branches" (the same one on all
// ranks), "one_branch" (always the same one), "sparse_branches" (as "branches", but each is an embedding with
// sparse gradients), "sparse_branch_by_rank" (even ranks always leave one of them unused, odd ranks the
// other), "mixed" (parameters of two types, odd strides, an empty and a
// shared one). The same weights for the same name.
std::shared_ptr<Net> make_net(const std::string& name);

}  // namespace lockstep::testing
