#include "tools/bench/training_models.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>

namespace lockstep::bench {
namespace {

namespace nn = torch::nn;

class Mlp final : public TrainedNet {
 public:
  explicit Mlp(const TrainingModel& model) : width_(model.width) {
    for (int i = 0; i < model.depth; ++i) layers_->push_back(nn::Linear(width_, width_));
    register_module("layers", layers_);
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = input;
    for (std::size_t i = 0; i < layers_->size(); ++i) {
      if (i > 0) x = at::relu(x);
      x = layers_->at<nn::LinearImpl>(i).forward(x);
    }
    return x;
  }
  at::Tensor loss(const at::Tensor& output, const at::Tensor& target) const override {
    return at::mse_loss(output, target);
  }
  Example examples(std::int64_t count, std::uint64_t seed) const override {
    torch::manual_seed(seed);
    at::Tensor input = torch::randn({count, width_});
    return {.input = input, .target = torch::randn({count, width_})};
  }

 private:
  const std::int64_t width_;
  nn::ModuleList layers_;
};

class Classifier : public TrainedNet {
 public:
  at::Tensor loss(const at::Tensor& output, const at::Tensor& target) const override {
    return at::cross_entropy_loss(output.flatten(0, -2), target.flatten());
  }
};

nn::Conv2dOptions convolution(std::int64_t from, std::int64_t to, int size, int stride) {
  return nn::Conv2dOptions(from, to, size).stride(stride).padding(size / 2).bias(false);
}

class ResidualBlock final : public nn::Module {
 public:
  ResidualBlock(std::int64_t from, std::int64_t to, int stride)
      : first_(convolution(from, to, 3, stride)), second_(convolution(to, to, 3, 1)), norm_(to), norm2_(to) {
    register_module("conv1", first_);
    register_module("bn1", norm_);
    register_module("conv2", second_);
    register_module("bn2", norm2_);
    if (stride == 1) return;
    shortcut_->push_back(nn::Conv2d(convolution(from, to, 1, stride)));
    shortcut_->push_back(nn::BatchNorm2d(to));
    register_module("downsample", shortcut_);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = norm2_(second_(at::relu(norm_(first_(x)))));
    return at::relu(y + (shortcut_->is_empty() ? x : shortcut_->forward(x)));
  }

 private:
  nn::Conv2d first_;
  nn::Conv2d second_;
  nn::BatchNorm2d norm_;
  nn::BatchNorm2d norm2_;
  nn::Sequential shortcut_;
};

class ResNet18 final : public Classifier {
 public:
  ResNet18() {
    register_module("conv1", stem_);
    register_module("bn1", norm_);
    std::int64_t from = 64;
    for (const std::int64_t to : {64, 128, 256, 512}) {
      blocks_->push_back(ResidualBlock(from, to, from == to ? 1 : 2));
      blocks_->push_back(ResidualBlock(to, to, 1));
      from = to;
    }
    register_module("blocks", blocks_);
    register_module("fc", head_);
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = at::max_pool2d(at::relu(norm_(stem_(input))), {3, 3}, {2, 2}, {1, 1});
    for (const auto& block : *blocks_) x = block->as<ResidualBlock>()->forward(x);
    return head_(x.mean({2, 3}));
  }
  Example examples(std::int64_t count, std::uint64_t seed) const override {
    torch::manual_seed(seed);
    at::Tensor input = torch::randn({count, 3, kSide, kSide});
    return {.input = input, .target = torch::randint(kClasses, {count}, at::kLong)};
  }

 private:
  static constexpr std::int64_t kSide = 64;
  static constexpr std::int64_t kClasses = 1000;
  nn::Conv2d stem_{convolution(3, 64, 7, 2)};
  nn::BatchNorm2d norm_{64};
  nn::ModuleList blocks_;
  nn::Linear head_{512, kClasses};
};

constexpr std::int64_t kWidth = 256;
constexpr std::int64_t kHeads = 4;

class GptBlock final : public nn::Module {
 public:
  GptBlock() {
    register_module("norm1", norm1_);
    register_module("attention", attention_);
    register_module("projection", projection_);
    register_module("norm2", norm2_);
    register_module("expand", expand_);
    register_module("contract", contract_);
  }
  at::Tensor forward(const at::Tensor& input) {
    const std::int64_t examples = input.size(0);
    const std::int64_t length = input.size(1);
    const auto parts = attention_(norm1_(input))
                           .view({examples, length, 3, kHeads, kWidth / kHeads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);
    const at::Tensor mixed =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    const at::Tensor x = input + projection_(mixed.transpose(1, 2).reshape({examples, length, kWidth}));
    return x + contract_(at::gelu(expand_(norm2_(x))));
  }

 private:
  nn::LayerNorm norm1_{nn::LayerNormOptions({kWidth})};
  nn::Linear attention_{kWidth, 3 * kWidth};
  nn::Linear projection_{kWidth, kWidth};
  nn::LayerNorm norm2_{nn::LayerNormOptions({kWidth})};
  nn::Linear expand_{kWidth, 4 * kWidth};
  nn::Linear contract_{4 * kWidth, kWidth};
};

class GptSmall final : public Classifier {
 public:
  GptSmall() {
    register_module("words", words_);
    register_module("places", places_);
    for (int i = 0; i < 4; ++i) blocks_->push_back(GptBlock());
    register_module("blocks", blocks_);
    register_module("norm", norm_);
    register_module("head", head_);
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = words_(input) + places_(at::arange(input.size(1), at::kLong));
    for (const auto& block : *blocks_) x = block->as<GptBlock>()->forward(x);
    return head_(norm_(x));
  }
  Example examples(std::int64_t count, std::uint64_t seed) const override {
    torch::manual_seed(seed);
    const at::Tensor text = torch::randint(kWords, {count, kLength + 1}, at::kLong);
    return {.input = text.narrow(1, 0, kLength).contiguous(),
            .target = text.narrow(1, 1, kLength).contiguous()};
  }

 private:
  static constexpr std::int64_t kWords = 2048;
  static constexpr std::int64_t kLength = 64;
  nn::Embedding words_{kWords, kWidth};
  nn::Embedding places_{kLength, kWidth};
  nn::ModuleList blocks_;
  nn::LayerNorm norm_{nn::LayerNormOptions({kWidth})};
  nn::Linear head_{kWidth, kWords};
};

std::shared_ptr<TrainedNet> make(const TrainingModel& model) {
  switch (model.kind) {
    case ModelKind::kResNet18:
      return std::make_shared<ResNet18>();
    case ModelKind::kGptSmall:
      return std::make_shared<GptSmall>();
    case ModelKind::kMlp:
      break;
  }
  return std::make_shared<Mlp>(model);
}

}  // namespace

std::shared_ptr<TrainedNet> make_trained_net(const TrainingModel& model) {
  std::shared_ptr<TrainedNet> net = make(model);
  const torch::NoGradGuard no_grad;
  std::uint64_t seed = 1;
  for (auto& parameter : net->named_parameters()) {
    at::Tensor& weights = parameter.value();
    torch::manual_seed(seed++);
    if (weights.dim() > 1) {
      const double inputs = static_cast<double>(weights.numel()) / static_cast<double>(weights.size(0));
      weights.normal_().div_(std::sqrt(inputs));
    } else {
      weights.fill_(parameter.key().ends_with("bias") ? 0 : 1);
    }
  }
  return net;
}

}  // namespace lockstep::bench
