#include "parity_nets.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <array>
#include <functional>
#include <map>
#include <vector>

#include "lockstep/ddp/activation_checkpoint.h"

namespace lockstep::testing {
namespace {

namespace nn = torch::nn;

nn::Linear linear(int from, int to, at::ScalarType type = at::kFloat) {
  nn::Linear layer(from, to);
  layer->to(type);
  return layer;
}

class Net final : public ParityNet {
 public:
  at::Tensor forward(const at::Tensor& x, bool use_c, bool use_d) override {
    at::Tensor y = torch::relu(norm_(a_(x)));
    y = b_(y);
    if (use_c) y = y + c_(y);
    if (use_d) y = y + d_(y);
    return y;
  }

 private:
  nn::Linear a_ = register_module("a", linear(8, 16));
  nn::BatchNorm1d norm_ = register_module("norm", nn::BatchNorm1d(16));
  nn::Linear b_ = register_module("b", linear(16, 16));
  nn::Linear c_ = register_module("c", linear(16, 16));
  nn::Linear d_ = register_module("d", linear(16, 16));
};

class Wide final : public ParityNet {
 public:
  Wide() {
    const std::array widths = {8, 1500, 1100, 1900, 1300, 900, 1000, 16};
    for (std::size_t i = 1; i < widths.size(); ++i) layers_->push_back(linear(widths[i - 1], widths[i]));
  }
  at::Tensor forward(const at::Tensor& x, bool /*use_c*/, bool /*use_d*/) override {
    at::Tensor y = x;
    for (const auto& layer : *layers_) y = torch::tanh(3 * layer->as<nn::Linear>()->forward(y));
    return y;
  }

 private:
  nn::ModuleList layers_ = register_module("layers", nn::ModuleList());
};

class Sparse final : public ParityNet {
 public:
  at::Tensor forward(const at::Tensor& x, bool use_c, bool use_d) override {
    const at::Tensor words = (10 * x.abs().sum(1)).to(at::kLong) % 12;
    at::Tensor y = a_(x);
    if (use_c) y = y + 0.5 * c_(words);
    if (use_d) y = y + 0.5 * d_(torch::stack({words, 11 - words}, 1));
    return b_(torch::tanh(y));
  }

 private:
  nn::Linear a_ = register_module("a", linear(8, 16));
  nn::Embedding c_ = register_module("c", nn::Embedding(nn::EmbeddingOptions(12, 16).sparse(true)));
  nn::Linear b_ = register_module("b", linear(16, 16));
  nn::EmbeddingBag d_ = register_module("d", nn::EmbeddingBag(nn::EmbeddingBagOptions(12, 16).sparse(true)));
};

class Mixed final : public ParityNet {
 public:
  at::Tensor forward(const at::Tensor& x, bool use_c, bool use_d) override {
    const at::Tensor y = torch::tanh(a_(x));
    at::Tensor z = b_(y.to(at::kDouble));
    if (use_c) z = z + c_(y.to(at::kBFloat16));
    if (use_d) z = z + d_(y.to(at::kHalf));
    return f_(e_(torch::tanh(z)).to(at::kFloat));
  }

 private:
  nn::Linear a_ = register_module("a", linear(8, 16));
  nn::Linear b_ = register_module("b", linear(16, 16, at::kDouble));
  nn::Linear c_ = register_module("c", linear(16, 16, at::kBFloat16));
  nn::Linear d_ = register_module("d", linear(16, 16, at::kHalf));
  nn::Linear e_ = register_module("e", linear(16, 16, at::kDouble));
  nn::Linear f_ = register_module("f", linear(16, 16));
};

// A Linear with the weight of another.
class Tied final : public nn::Module {
 public:
  explicit Tied(const at::Tensor& weight) : weight_(register_parameter("weight", weight)) {}
  at::Tensor forward(const at::Tensor& x) const { return torch::linear(x, weight_, bias_); }

 private:
  at::Tensor weight_;
  at::Tensor bias_ = register_parameter("bias", torch::empty(8));
};

class Odd final : public ParityNet {
 public:
  Odd() {
    for (at::Tensor& parameter : frozen_->parameters()) parameter.requires_grad_(false);
    conv_->weight.set_data(conv_->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  at::Tensor forward(const at::Tensor& x, bool /*use_c*/, bool /*use_d*/) override {
    seen_.add_(x.detach().mean(0));
    at::Tensor y = torch::tanh(b_->forward(torch::tanh(a_(x))));
    y = frozen_(c_(torch::tanh(c_(y))));
    y = conv_(y.view({4, 2, 2, 2})).flatten(1);
    return own_(torch::cat({y.matmul(turned_), none_}) * scale_);
  }

 private:
  at::Tensor scale_ = register_parameter("scale", torch::empty({}));
  at::Tensor none_ = register_parameter("none", torch::empty({0, 8}));
  at::Tensor turned_ = register_parameter("turned", torch::empty({8, 16}).t());
  nn::Linear a_ = register_module("a", linear(8, 8));
  std::shared_ptr<Tied> b_ = register_module("b", std::make_shared<Tied>(a_->weight));
  nn::Linear c_ = register_module("c", linear(8, 8));
  nn::Linear frozen_ = register_module("frozen", linear(8, 8));
  nn::Conv2d conv_ = register_module("conv", nn::Conv2d(nn::Conv2dOptions(2, 4, 3).padding(1)));
  nn::Linear own_ = register_module("own", linear(8, 8));
  at::Tensor seen_ = register_buffer("seen", torch::zeros(8));
};

class Checkpoints final : public ParityNet {
 public:
  explicit Checkpoints(bool reentrant) : reentrant_(reentrant) {}
  at::Tensor forward(const at::Tensor& x, bool use_c, bool use_d) override {
    at::Tensor y = a_(x);
    std::vector<nn::Linear> layers = {b_, c_};
    if (use_c) layers.push_back(c_);
    for (const nn::Linear& layer : layers) {
      const auto part = [layer](const at::Tensor& z) { return torch::tanh(layer.ptr()->forward(z)); };
      y = lockstep::checkpoint({.reentrant = reentrant_}, part, y);
    }
    return use_d ? y + d_(y) : y;
  }

 private:
  const bool reentrant_;
  nn::Linear a_ = register_module("a", linear(8, 16));
  nn::Linear b_ = register_module("b", linear(16, 16));
  nn::Linear c_ = register_module("c", linear(16, 16));
  nn::Linear d_ = register_module("d", linear(16, 16));
};

}  // namespace

std::shared_ptr<ParityNet> make_parity_net(const std::string& name) {
  static const std::map<std::string, std::function<std::shared_ptr<ParityNet>()>> kNets = {
      {"net", std::make_shared<Net>},
      {"wide", std::make_shared<Wide>},
      {"sparse", std::make_shared<Sparse>},
      {"mixed", std::make_shared<Mixed>},
      {"odd", std::make_shared<Odd>},
      {"checkpoints", [] { return std::make_shared<Checkpoints>(false); }},
      {"reentrant", [] { return std::make_shared<Checkpoints>(true); }}};
  return kNets.at(name)();
}

}  // namespace lockstep::testing
