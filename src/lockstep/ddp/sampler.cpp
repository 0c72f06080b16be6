#include "lockstep/ddp/sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/text.h"
#include "lockstep/ddp/logger.h"
#include "lockstep/tensor/errors.h"

namespace lockstep::ddp {
namespace {

[[noreturn]] void refuse_sampler(const std::string& what) {
  throw tensor::InvalidArgument(
      Status::invalid(cat("DistributedSampler: ", what), {.op = "DistributedSampler"}), {});
}

at::Generator generator(std::uint64_t seed) {
  at::Generator own = at::detail::createCPUGenerator();
  own.set_current_seed(seed);
  return own;
}

std::vector<std::size_t> indices_of(const at::Tensor& numbers) {
  const auto* const data = numbers.const_data_ptr<std::int64_t>();
  return {data, data + numbers.numel()};
}

// What save() writes: the epoch, with how many of its indices all ranks have taken, and the order in words.
constexpr const char* kPlace = "epoch_and_taken";
constexpr const char* kOrder = "order";

[[noreturn]] void refuse_archive_without(const char* name) {
  refuse_sampler(cat("load: the archive has no ", base::quoted(name),
                     " of a sampler; give it what save() of one has written, or the archive nested in it."));
}

std::pair<std::int64_t, std::int64_t> place_in(torch::serialize::InputArchive& archive) {
  at::Tensor numbers;
  if (!archive.try_read(kPlace, numbers, /*is_buffer=*/true) || numbers.scalar_type() != at::kLong ||
      numbers.sizes() != at::IntArrayRef(2))
    refuse_archive_without(kPlace);
  const auto* const data = numbers.const_data_ptr<std::int64_t>();
  return {data[0], data[1]};
}

std::string order_in(torch::serialize::InputArchive& archive) {
  c10::IValue text;
  if (!archive.try_read(kOrder, text) || !text.isString()) refuse_archive_without(kOrder);
  return text.toStringRef();
}

// An epoch's size.
std::size_t checked(std::size_t size) {
  constexpr std::size_t kMost = PTRDIFF_MAX / sizeof(std::size_t);
  if (size > kMost)
    refuse_sampler(
        cat("an epoch of ", size, " indices has no place in memory; there are ", kMost, " at most."));
  return size;
}

std::size_t replicas_of(const SamplerOptions& options) {
  const int replicas = options.num_replicas ? *options.num_replicas : options.group.size();
  if (replicas < 1) refuse_sampler(cat("num_replicas is ", replicas, "; there is at least one."));
  return static_cast<std::size_t>(replicas);
}

std::size_t rank_of(const SamplerOptions& options) {
  const int rank = options.rank ? *options.rank : options.group.rank();
  const std::size_t replicas = replicas_of(options);
  if (rank < 0 || static_cast<std::size_t>(rank) >= replicas)
    refuse_sampler(cat("rank is ", rank, ", but there are ", replicas, " replicas, numbered from 0."));
  return static_cast<std::size_t>(rank);
}

void check(std::span<const double> weights) {
  constexpr std::size_t kMost = std::size_t{1} << 24U;  // that at::multinomial takes
  if (weights.size() > kMost)
    refuse_sampler(cat("there are ", weights.size(), " weights, but no more than ", kMost,
                       " can be drawn from; give groups of examples a weight."));
  const auto bad = std::find_if(weights.begin(), weights.end(),
                                [](double weight) { return !(weight >= 0) || std::isinf(weight); });
  if (bad != weights.end())
    refuse_sampler(cat("weight ", bad - weights.begin(), " is ", *bad, "; weights are 0 or above."));
}

void check(const DistributedWeightedSampler::Draw& draw, std::span<const double> weights) {
  if (checked(draw.num_samples) == 0) refuse_sampler("num_samples is 0; there is at least one.");
  const auto likely = static_cast<std::size_t>(
      std::count_if(weights.begin(), weights.end(), [](double weight) { return weight > 0; }));
  if (likely == 0) refuse_sampler("no weight is above 0.");
  if (draw.replacement || draw.num_samples <= likely) return;
  refuse_sampler(cat("num_samples is ", draw.num_samples, ", but without replacement only ", likely,
                     " have a weight above 0."));
}

}  // namespace

// The indices of all ranks in one epoch.
class RankSampler::Order {
 public:
  explicit Order(const SamplerOptions& options)
      : replicas_(replicas_of(options)),
        rank_(rank_of(options)),
        seed_(options.seed),
        drop_last_(options.drop_last) {}
  virtual ~Order() = default;

  virtual std::size_t total() const = 0;
  virtual void resize(std::size_t size) = 0;
  virtual bool same_in_every_epoch() const = 0;
  virtual std::vector<std::size_t> all(std::size_t epoch) const = 0;
  // Orders that are alike in these words are the same, in every world.
  std::string in_words() const { return cat(kind(), drop_last_ ? ", with drop_last" : ""); }

  // What this rank gets of the indices that are left in an epoch when all ranks have taken `taken`.
  std::size_t share(std::size_t taken) const {
    const std::size_t left = total() - std::min(taken, total());
    return left / replicas_ + (drop_last_ || left % replicas_ == 0 ? 0 : 1);
  }
  std::vector<std::size_t> of_rank(std::size_t epoch, std::size_t taken) const {
    const std::vector<std::size_t> indices = all(epoch);
    std::vector<std::size_t> own;
    if (indices.empty()) return own;
    for (std::size_t i = 0; i < share(taken); ++i)
      own.push_back(indices[(taken + rank_ + i * replicas_) % indices.size()]);
    return own;
  }
  // How many all ranks have taken when each has got `own` more: all, once it has its share.
  std::size_t taken_after(std::size_t taken, std::size_t own) const {
    return own < share(taken) ? taken + own * replicas_ : total();
  }

 protected:
  virtual std::string kind() const = 0;
  std::uint64_t seed() const { return seed_; }

 private:
  const std::size_t replicas_;
  const std::size_t rank_;
  const std::uint64_t seed_;
  const bool drop_last_;
};

struct RankSampler::State {
  std::unique_ptr<Order> order;
  std::size_t epoch = 0;
  std::optional<std::size_t> begun = {};  // the epoch that the indices are of
  std::size_t taken = 0;                  // of that epoch, by all ranks, before this one began with them
  std::vector<std::size_t> indices = {};
  std::size_t at = 0;
  bool resumed = false;  // load() has set the place: the next epoch goes on from it
  bool epoch_is_new = true;
  bool warned = false;

  void fill(std::size_t taken_before) {
    indices = order->of_rank(epoch, taken_before);
    taken = taken_before;
    at = 0;
    begun = epoch;
  }
};

RankSampler::RankSampler(std::unique_ptr<Order> order) : state_(std::make_shared<State>()) {
  state_->order = std::move(order);
}

void RankSampler::set_epoch(std::size_t epoch) {
  if (epoch != state_->epoch) state_->resumed = false;  // the place was one of that epoch
  state_->epoch = epoch;
  state_->epoch_is_new = true;
}
std::size_t RankSampler::epoch() const { return state_->epoch; }
std::size_t RankSampler::size() const { return state_->order->share(0); }

void RankSampler::reset(std::optional<std::size_t> new_size) {
  if (new_size) state_->order->resize(*new_size);
  if (!std::exchange(state_->epoch_is_new, false) && !state_->order->same_in_every_epoch() &&
      !std::exchange(state_->warned, true)) {
    kLog.warn(
        cat("DistributedSampler: an epoch begins in the same order as the last one; call set_epoch() before "
            "each."));
  }
  state_->fill(std::exchange(state_->resumed, false) ? state_->taken : 0);
}

std::optional<std::vector<std::size_t>> RankSampler::next(std::size_t batch_size) {
  if (!state_->begun) {
    state_->fill(0);
    state_->epoch_is_new = false;
  }
  state_->resumed = false;  // by hand: this is the epoch that goes on
  const std::size_t count =
      std::min(batch_size, state_->indices.size() - std::min(state_->at, state_->indices.size()));
  if (count == 0) return std::nullopt;
  const auto from = state_->indices.begin() + static_cast<std::ptrdiff_t>(state_->at);
  state_->at += count;
  return std::vector<std::size_t>(from, from + static_cast<std::ptrdiff_t>(count));
}

void RankSampler::save(torch::serialize::OutputArchive& archive) const {
  const std::size_t taken =
      state_->begun == state_->epoch ? state_->order->taken_after(state_->taken, state_->at) : 0;
  const std::vector<std::int64_t> place = {static_cast<std::int64_t>(state_->epoch),
                                           static_cast<std::int64_t>(taken)};
  archive.write(kPlace, at::tensor(place, at::kLong), /*is_buffer=*/true);
  archive.write(kOrder, c10::IValue(state_->order->in_words()));
}

void RankSampler::load(torch::serialize::InputArchive& archive) {
  const auto [epoch, taken] = place_in(archive);
  const std::string order = order_in(archive);
  if (order != state_->order->in_words())
    refuse_sampler(cat("load: the place was saved by a sampler that gives the indices of ", order,
                       ", but this one gives those of ", state_->order->in_words(),
                       "; make it with the same arguments."));
  const std::size_t all = state_->order->total();
  if (epoch < 0 || taken < 0 || static_cast<std::size_t>(taken) > all)
    refuse_sampler(cat("load: the archive is damaged: it says epoch ", epoch, ", of which ", taken,
                       " indices were taken; none is below 0, and all are ", all, '.'));
  go_on(static_cast<std::size_t>(epoch), static_cast<std::size_t>(taken));
}

void RankSampler::resume_at(std::size_t epoch, std::size_t seen) {
  if (seen > size())
    refuse_sampler(cat("resume_at: ", seen, " indices were seen, but a rank gets ", size(), " in an epoch."));
  go_on(epoch, state_->order->taken_after(0, seen));
}

void RankSampler::go_on(std::size_t epoch, std::size_t taken) {
  set_epoch(epoch);
  state_->fill(taken);
  state_->resumed = true;
}

DistributedSampler::DistributedSampler(std::size_t dataset_size, const SamplerOptions& options)
    : RankSampler([&]() -> std::unique_ptr<Order> {
        class All final : public Order {
         public:
          All(std::size_t size, const SamplerOptions& how)
              : Order(how), size_(checked(size)), shuffle_(how.shuffle) {}
          std::size_t total() const override { return size_; }
          void resize(std::size_t size) override { size_ = checked(size); }
          bool same_in_every_epoch() const override { return !shuffle_; }
          std::vector<std::size_t> all(std::size_t epoch) const override {
            if (shuffle_)
              return indices_of(
                  at::randperm(static_cast<std::int64_t>(size_), generator(seed() + epoch), at::kLong));
            std::vector<std::size_t> indices(size_);
            std::iota(indices.begin(), indices.end(), std::size_t{0});
            return indices;
          }
          std::string kind() const override {
            return cat(size_, " examples, ",
                       shuffle_ ? cat("shuffled with the seed ", seed()) : "in their own order");
          }

         private:
          std::size_t size_;
          const bool shuffle_;
        };
        return std::make_unique<All>(dataset_size, options);
      }()) {}

DistributedWeightedSampler::DistributedWeightedSampler(std::vector<double> weights, const Draw& draw,
                                                       const SamplerOptions& options)
    : RankSampler([&]() -> std::unique_ptr<Order> {
        class Weighted final : public Order {
         public:
          Weighted(std::vector<double> weights_of, const Draw& how_to_draw, const SamplerOptions& how)
              : Order(how), weights_(std::move(weights_of)), draw_(how_to_draw) {
            check(weights_);
            check(draw_, weights_);
          }
          std::size_t total() const override { return draw_.num_samples; }
          void resize(std::size_t size) override {
            const Draw another{.num_samples = size, .replacement = draw_.replacement};
            check(another, weights_);
            draw_ = another;
          }
          bool same_in_every_epoch() const override { return false; }
          std::vector<std::size_t> all(std::size_t epoch) const override {
            return indices_of(at::multinomial(at::tensor(weights_, at::kDouble),
                                              static_cast<std::int64_t>(draw_.num_samples), draw_.replacement,
                                              generator(seed() + epoch)));
          }
          std::string kind() const override {
            return cat(draw_.num_samples, " samples ", draw_.replacement ? "with" : "without",
                       " replacement by ", weights_.size(), " weights (checksum ",
                       base::crc32c(base::bytes_of(weights_)), ") with the seed ", seed());
          }

         private:
          const std::vector<double> weights_;
          Draw draw_;
        };
        return std::make_unique<Weighted>(std::move(weights), draw, options);
      }()) {}

}  // namespace lockstep::ddp
