// Samplers that give each rank its own part of a data set, for torch's data loaders.
//
//   lockstep::DistributedSampler sampler(dataset.size().value());
//   auto loader = torch::data::make_data_loader(std::move(dataset), sampler, 64);
//   for (int epoch = 0; epoch < 10; ++epoch) {
//     sampler.set_epoch(epoch);             // another order, the same on all ranks
//     for (auto& batch : *loader) { ... }
//   }
//
// A sampler is a handle: a loader's copy is the same sampler. Every rank gets as many indices: where they do
// not come out even, the first ones are given again, or the last ones left out (drop_last).
// DistributedSampler gives the indices of Python's sampler of that name for the same seed and epoch. It takes
// the place of torch::data's DistributedRandomSampler and, with shuffle = false, its
// DistributedSequentialSampler, whose ranks take neighbouring indices. By hand: the first epoch begins with
// the first next(), each after it with reset(). save() and load() keep the place in the epoch: the first
// epoch after load() goes on from there. The world may be another then: what is saved is how many indices all
// ranks have taken, each as many as this one, and those behind them are given to the ranks that there are
// now. All else is as it was: another seed, shuffle, drop_last, size or weights is refused, because the place
// is one in another order. A loader with workers asks for more than the program has seen: then keep the count
// of the examples seen, and resume_at() it.
// Errors: InvalidArgument; then the sampler is as it was.
//
// Thread safety: one thread at a time, as a loader asks.
#pragma once

#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/tensor/process_group.h"

namespace lockstep::ddp {

struct SamplerOptions {
  std::optional<int> num_replicas = {};  // else the group's size
  std::optional<int> rank = {};          // else the rank in it
  tensor::ProcessGroup group = {};
  bool shuffle = true;
  std::uint64_t seed = 0;  // the same on all ranks
  bool drop_last = false;
};

// What both samplers share.
class RankSampler : public torch::data::samplers::Sampler<> {
 public:
  void set_epoch(std::size_t epoch);
  std::size_t epoch() const;
  // The next epoch is this one, without the first `seen` indices of each rank.
  void resume_at(std::size_t epoch, std::size_t seen);
  // How many indices this rank gets in an epoch.
  std::size_t size() const;

  void reset(std::optional<std::size_t> new_size = {}) override;
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  class Order;
  explicit RankSampler(std::unique_ptr<Order> order);

 private:
  struct State;
  void go_on(std::size_t epoch, std::size_t taken);

  std::shared_ptr<State> state_;  // shared by copies: the loader's is the user's
};

// All indices of a data set, in an order of each epoch's own, or (shuffle = false) in their own.
class DistributedSampler final : public RankSampler {
 public:
  explicit DistributedSampler(std::size_t dataset_size, const SamplerOptions& options = {});
};

// `num_samples` indices in all, each as likely as its weight says; without replacement each at most once.
class DistributedWeightedSampler final : public RankSampler {
 public:
  struct Draw {
    std::size_t num_samples = 0;  // of all ranks together
    bool replacement = true;
  };
  DistributedWeightedSampler(std::vector<double> weights, const Draw& draw,
                             const SamplerOptions& options = {});
};

}  // namespace lockstep::ddp

namespace lockstep {
using ddp::DistributedSampler;
using ddp::DistributedWeightedSampler;
using ddp::SamplerOptions;
}  // namespace lockstep
