#include "nets.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <stdexcept>

namespace lockstep::testing {
namespace {

namespace nn = torch::nn;

// Numbers of their own for each rank and step, whatever else has asked for numbers.
at::Generator generator(int rank, int step) {
  at::Generator own = at::detail::createCPUGenerator();
  const int seed = 1000 * step + rank + 1;
  own.set_current_seed(static_cast<std::uint64_t>(seed));
  return own;
}
at::Tensor numbers(at::IntArrayRef sizes, int rank, int step) {
  return torch::randn(sizes, generator(rank, step));
}
at::Tensor words(std::int64_t count, at::IntArrayRef sizes, int rank, int step) {
  return torch::randint(0, count, sizes, generator(rank, step), at::kLong);
}

class Mlp final : public Net {
 public:
  Mlp() {
    for (int i = 0; i < 4; ++i) layers_->push_back(nn::Linear(31, 31));
    register_module("layers", layers_);
  }
  at::Tensor forward(const Batch& batch) override {
    at::Tensor x = batch[0];
    for (const auto& layer : *layers_) x = torch::tanh(layer->as<nn::Linear>()->forward(x));
    return x.square().mean();
  }
  Batch batch(int rank, int step) const override { return {numbers({7, 31}, rank, step)}; }

 private:
  nn::ModuleList layers_;
};

class Cnn final : public Net {
 public:
  Cnn() {
    register_module("first", first_);
    register_module("norm", norm_);
    register_module("second", second_);
    register_module("second_norm", second_norm_);
    register_module("head", head_);
  }
  at::Tensor forward(const Batch& batch) override {
    const at::Tensor x = torch::relu(norm_(first_(batch[0])));
    const at::Tensor y = torch::relu(x + second_norm_(second_(x)));
    return head_(y.mean({2, 3})).square().mean();
  }
  Batch batch(int rank, int step) const override { return {numbers({3, 2, 8, 8}, rank, step)}; }

 private:
  nn::Conv2d first_{nn::Conv2dOptions(2, 6, 3).padding(1).bias(false)};
  nn::BatchNorm2d norm_{6};
  nn::Conv2d second_{nn::Conv2dOptions(6, 6, 3).padding(1)};
  nn::BatchNorm2d second_norm_{6};
  nn::Linear head_{6, 5};
};

class Lstm final : public Net {
 public:
  Lstm() {
    register_module("lstm", lstm_);
    register_module("head", head_);
  }
  at::Tensor forward(const Batch& batch) override {
    return head_(std::get<0>(lstm_(batch[0]))).square().mean();
  }
  Batch batch(int rank, int step) const override { return {numbers({5, 3, 9}, rank, step)}; }

 private:
  nn::LSTM lstm_{nn::LSTMOptions(9, 11).num_layers(2)};
  nn::Linear head_{11, 4};
};

class Words final : public Net {
 public:
  Words() {
    register_module("words", words_);
    register_module("head", head_);
  }
  at::Tensor forward(const Batch& batch) override { return head_(words_(batch[0]).mean(1)).square().mean(); }
  Batch batch(int rank, int step) const override { return {words(40, {4, 3}, rank, step)}; }

 private:
  nn::Embedding words_{nn::EmbeddingOptions(40, 6).sparse(true)};
  nn::Linear head_{6, 3};
};

class Gpt final : public Net {
 public:
  Gpt() {
    register_module("tokens", tokens_);
    places_ = register_parameter("places", torch::randn({kLength, kWidth}) * 0.02);
    for (int i = 0; i < 2; ++i) {
      attention_->push_back(nn::MultiheadAttention(nn::MultiheadAttentionOptions(kWidth, 2)));
      inner_->push_back(nn::Linear(kWidth, 2 * kWidth));
      outer_->push_back(nn::Linear(2 * kWidth, kWidth));
      norms_->push_back(nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    }
    register_module("attention", attention_);
    register_module("inner", inner_);
    register_module("outer", outer_);
    register_module("norms", norms_);
  }
  at::Tensor forward(const Batch& batch) override {
    at::Tensor x = tokens_(batch[0]) + places_.unsqueeze(1);
    const at::Tensor mask = torch::full({kLength, kLength}, -1e9).triu(1);
    for (std::size_t i = 0; i < 2; ++i) {
      const at::Tensor y = norms_[i]->as<nn::LayerNorm>()->forward(x);
      x = x + std::get<0>(attention_[i]->as<nn::MultiheadAttention>()->forward(y, y, y, {}, false, mask));
      x = x + outer_[i]->as<nn::Linear>()->forward(torch::gelu(inner_[i]->as<nn::Linear>()->forward(x)));
    }
    const at::Tensor logits = torch::matmul(x, tokens_->weight.t());  // the tokens' weight is used twice
    return torch::cross_entropy_loss(logits.view({-1, kTokens}), batch[0].reshape({-1}));
  }
  Batch batch(int rank, int step) const override { return {words(kTokens, {kLength, 3}, rank, step)}; }

 private:
  static constexpr std::int64_t kTokens = 17;
  static constexpr std::int64_t kLength = 6;
  static constexpr std::int64_t kWidth = 8;
  nn::Embedding tokens_{kTokens, kWidth};
  at::Tensor places_;
  nn::ModuleList attention_;
  nn::ModuleList inner_;
  nn::ModuleList outer_;
  nn::ModuleList norms_;
};

// 1 leaves the left branch out, 2 the right one, 0 none.
using LeftOut = int (*)(int rank, int step);

class Branches final : public Net {
 public:
  explicit Branches(LeftOut left_out) : left_out_(left_out) {
    register_module("trunk", trunk_);
    register_module("left", left_);
    register_module("right", right_);
    register_module("never", never_);
  }
  at::Tensor forward(const Batch& batch) override {
    const at::Tensor x = torch::tanh(trunk_(batch[0]));
    const auto which = batch[1].item<std::int64_t>();
    at::Tensor sum = x.square().mean();
    if (which != 1) sum = sum + left_(x).square().mean();
    if (which != 2) sum = sum + right_(x).square().mean();
    return sum;
  }
  Batch batch(int rank, int step) const override {
    return {numbers({4, 5}, rank, step), torch::tensor(left_out_(rank, step))};
  }

 private:
  const LeftOut left_out_;
  nn::Linear trunk_{5, 5};
  nn::Linear left_{5, 3};
  nn::Linear right_{5, 3};
  nn::Linear never_{2, 2};
};

int another_on_odd_ranks(int rank, int step) { return step % 3 == 0 ? 0 : step % 3 == 1 ? 1 : 1 + rank % 2; }
int the_same_on_all_ranks(int /*rank*/, int step) { return step % 3; }
int always_the_left(int /*rank*/, int /*step*/) { return 1; }

int another_by_rank(int rank, int /*step*/) { return 1 + rank % 2; }

class SparseBranches final : public Net {
 public:
  explicit SparseBranches(LeftOut left_out) : left_out_(left_out) {
    register_module("trunk", trunk_);
    register_module("left", left_);
    register_module("right", right_);
  }
  at::Tensor forward(const Batch& batch) override {
    const auto which = batch[1].item<std::int64_t>();
    at::Tensor sum = trunk_(batch[0].to(at::kFloat)).square().mean();
    if (which != 1) sum = sum + left_(batch[0]).square().mean();
    if (which != 2) sum = sum + right_(batch[0]).square().mean();
    return sum;
  }
  Batch batch(int rank, int step) const override {
    return {words(20, {4, 3}, rank, step), torch::tensor(left_out_(rank, step))};
  }

 private:
  const LeftOut left_out_;
  nn::Linear trunk_{3, 2};
  nn::Embedding left_{nn::EmbeddingOptions(20, 4).sparse(true)};
  nn::Embedding right_{nn::EmbeddingOptions(20, 4).sparse(true)};
};

class Mixed final : public Net {
 public:
  Mixed() {
    wide_ = register_parameter("wide", torch::randn({3, 4}, at::kDouble));
    turned_ = register_parameter("turned", torch::randn({4, 5}).t());
    again_ = register_parameter("again", turned_);
    empty_ = register_parameter("empty", torch::randn({0, 3}));
    frozen_ = register_parameter("frozen", torch::randn({5}), false);
    scalar_ = register_parameter("scalar", torch::randn({}));
    short_ = register_parameter("short", torch::randn({4}).to(at::kBFloat16));
  }
  at::Tensor forward(const Batch& batch) override {
    const at::Tensor x = torch::matmul(turned_, batch[0]);
    const at::Tensor y =
        torch::matmul(again_ * scalar_, torch::tanh(batch[0]) * short_.to(at::kFloat).unsqueeze(1));
    const at::Tensor z = torch::matmul(wide_, batch[0].to(at::kDouble)).to(at::kFloat).sum();
    return ((x + y + frozen_.unsqueeze(1)).square().mean() + z.square() + empty_.sum());
  }
  Batch batch(int rank, int step) const override { return {numbers({4, 2}, rank, step)}; }

 private:
  at::Tensor wide_;
  at::Tensor turned_;
  at::Tensor again_;
  at::Tensor empty_;
  at::Tensor frozen_;
  at::Tensor scalar_;
  at::Tensor short_;
};

}  // namespace

std::shared_ptr<Net> make_net(const std::string& name) {
  torch::manual_seed(42);
  if (name == "mlp") return std::make_shared<Mlp>();
  if (name == "cnn") return std::make_shared<Cnn>();
  if (name == "lstm") return std::make_shared<Lstm>();
  if (name == "embedding") return std::make_shared<Words>();
  if (name == "gpt") return std::make_shared<Gpt>();
  if (name == "branches") return std::make_shared<Branches>(another_on_odd_ranks);
  if (name == "same_branches") return std::make_shared<Branches>(the_same_on_all_ranks);
  if (name == "one_branch") return std::make_shared<Branches>(always_the_left);
  if (name == "sparse_branches") return std::make_shared<SparseBranches>(another_on_odd_ranks);
  if (name == "sparse_branch_by_rank") return std::make_shared<SparseBranches>(another_by_rank);
  if (name == "mixed") return std::make_shared<Mixed>();
  throw std::invalid_argument("no net is called " + name);
}

}  // namespace lockstep::testing
