// What `lockstep bench ddp` can train: the models and the options of data parallelism. Shared by the command
// and its helper. Pure.
//
//   mlp-WxD     D linear layers of W to W with bias, ReLU between them; squared error
//   resnet18    the usual one, images of 64x64, 1,000 classes
//   gpt-small   4 blocks of width 256 with 4 heads, 2,048 words, texts of 64
//
// torch_training_peer.py has the same.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::bench {

enum class ModelKind : std::uint8_t { kMlp, kResNet18, kGptSmall };

struct TrainingModel {
  ModelKind kind = ModelKind::kMlp;
  std::int64_t width = 0;  // of an MLP
  int depth = 0;

  // Examples in a batch of one rank, unless another number is asked for.
  int batch() const { return kind == ModelKind::kMlp ? 32 : 4; }
  bool operator==(const TrainingModel&) const = default;
};

// An MLP has a width from 1 to 16384 and a depth from 1 to 256.
std::optional<TrainingModel> parse_training_model(std::string_view name);

// How both sides are told to work: "default"; "find_unused_parameters", "static_graph" and
// "batched_grad_copy" as the options are called; "no_bucket_view" is gradient_as_bucket_view = false;
// "bucket_cap_mb_list" has the sizes of kBucketCaps; "skip_all_reduce_unused_params" has
// find_unused_parameters with it, which it needs (every model uses all of its parameters: nothing is
// skipped); "no_sync" adds up the gradients of two batches in each step, the first of them under no_sync();
// "fp16_compress_hook" and "bf16_compress_hook" register that hook.
inline constexpr std::array<std::string_view, 10> kTrainingOptions = {"default",
                                                                      "find_unused_parameters",
                                                                      "static_graph",
                                                                      "no_bucket_view",
                                                                      "no_sync",
                                                                      "batched_grad_copy",
                                                                      "bucket_cap_mb_list",
                                                                      "skip_all_reduce_unused_params",
                                                                      "fp16_compress_hook",
                                                                      "bf16_compress_hook"};
// MiB: a first bucket that is soon full, and larger ones after it.
inline constexpr std::array<double, 3> kBucketCaps = {1, 4, 16};

}  // namespace lockstep::bench
