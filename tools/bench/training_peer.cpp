// One rank of `lockstep bench ddp` in C++: data parallel, or one of several plain trainings.
//
//   training_peer SOCKET RENDEZVOUS RANK SIZE {lockstep,plain}
//
// It answers (command_link.h)
//   train MODEL OPTION BATCH STEPS                 a new model, trained for so many steps
//       -> trained BYTES DIGEST LOSS LOSS ...      of its gradients; of its weights in the end; of each step
//   run MODEL OPTION BATCH ITERATIONS BATCHES      the model that is there, if it is that one
//       -> ran VERIFIED CPU_NS START END START END ...
//   communication                                  of the last run
//       -> communicated OVERLAP EXPOSED_US
// A batch of `run` is ITERATIONS steps: the ranks meet in a barrier, START, the steps, END, and meet again;
// the rest is as in collective_peer.h. VERIFIED: all replicas are equal, bit by bit. torch_training_peer.py
// speaks the same, but for `communication`.
#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/text.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/groups.h"
#include "lockstep/tensor/init.h"
#include "tools/bench/command_link.h"
#include "tools/bench/training_models.h"

namespace lockstep::bench {
namespace {

constexpr double kLearningRate = 0.01;
constexpr int kExamples = 4;  // different ones, over and over

WorldHandle join(const std::vector<std::string>& arguments) {
  if (arguments.size() < 5) give_up("too few arguments");
  const InitOptions options{.init_method = "file://" + arguments[1],
                            .rank = base::parse_integer<int>(arguments[2]).value_or(-1),
                            .world_size = base::parse_integer<int>(arguments[3]).value_or(-1),
                            .timeout = std::chrono::minutes(2)};
  try {
    return init_process_group(options);
  } catch (const std::exception& error) {
    give_up(error.what());
  }
}

// What is trained, and how.
struct Task {
  std::string model = {};
  std::string option = {};
  std::int64_t batch = 0;

  bool operator==(const Task&) const = default;
};

DataParallelOptions options_of(const std::string& option) {
  DataParallelOptions options;
  options.skip_all_reduce_unused_params = option == "skip_all_reduce_unused_params";
  options.find_unused_parameters =
      option == "find_unused_parameters" || options.skip_all_reduce_unused_params;
  options.static_graph = option == "static_graph";
  options.gradient_as_bucket_view = option != "no_bucket_view";
  options.batched_grad_copy = option == "batched_grad_copy";
  if (option == "bucket_cap_mb_list")
    options.bucket_cap_mb_list.assign(kBucketCaps.begin(), kBucketCaps.end());
  return options;
}

// One rank's model in training.
class Training {
 public:
  Training(const Task& task, bool plain)
      : net_(make_trained_net(*parse_training_model(task.model))),
        accumulates_(task.option == "no_sync"),
        optimizer_(net_->parameters(), kLearningRate) {
    if (!plain) model_.emplace(net_, options_of(task.option));
    for (int i = 0; i < kExamples; ++i) {
      const int seed = 1000 * (get_rank() + 1) + i;
      examples_.push_back(net_->examples(task.batch, static_cast<std::uint64_t>(seed)));
    }
    if (!model_) return;
    if (task.option == "fp16_compress_hook") model_->register_comm_hook(fp16_compress_hook());
    if (task.option == "bf16_compress_hook") model_->register_comm_hook(bf16_compress_hook());
    model_->observe([this](const PassEvent& event) {
      if (event.phase == PassPhase::kFinished) ++passes_;
      running_ += event.running;
      waiting_ += event.waiting;
    });
  }

  // The loss, as a tensor: to read it costs time.
  at::Tensor step() {
    optimizer_.zero_grad();
    if (accumulates_ && model_) {
      const NoSync guard = model_->no_sync();
      backward();
    } else if (accumulates_) {
      backward();
    }
    at::Tensor loss = backward();
    optimizer_.step();
    return loss;
  }

  std::size_t gradient_bytes() const {
    std::size_t bytes = 0;
    for (const at::Tensor& parameter : net_->parameters()) bytes += parameter.nbytes();
    return bytes;
  }
  std::uint32_t digest() const {
    std::uint32_t digest = 0;
    for (const at::Tensor& parameter : net_->parameters()) {
      const auto* const bytes = static_cast<const std::byte*>(parameter.const_data_ptr());
      digest = base::crc32c({bytes, parameter.nbytes()}, digest);
    }
    return digest;
  }

  void forget_communication() {
    running_ = waiting_ = {};
    passes_ = 0;
  }
  std::string communication() const {
    const auto micros = [](Duration time) { return std::chrono::duration<double, std::micro>(time).count(); };
    const double overlap = running_ > Duration{} ? std::max(0.0, 1 - micros(waiting_) / micros(running_)) : 1;
    return cat("communicated ", overlap, " ", micros(waiting_) / std::max(passes_, 1));
  }

 private:
  at::Tensor backward() {
    const Example& example = examples_[next_++ % examples_.size()];
    const at::Tensor output = model_ ? model_->forward(example.input) : net_->forward(example.input);
    at::Tensor loss = net_->loss(output, example.target);
    loss.backward();
    return loss.detach();
  }

  const std::shared_ptr<TrainedNet> net_;
  std::optional<DistributedDataParallel<TrainedNet>> model_;  // none: plain
  const bool accumulates_;                                    // two batches in each step
  torch::optim::SGD optimizer_;
  std::vector<Example> examples_;
  std::size_t next_ = 0;
  Duration running_ = {};  // of communication, in all passes
  Duration waiting_ = {};  // of these, after backward
  int passes_ = 0;
};

class TrainingPeer {
 public:
  explicit TrainingPeer(const std::vector<std::string>& arguments)
      : world_(join(arguments)), plain_(arguments[4] == "plain") {}

  static std::string hello() {
    return cat("rank ", get_rank(), " ", LOCKSTEP_VERSION, ", torch ", TORCH_VERSION);
  }

  std::string answer(const std::string& command) {
    try {
      std::istringstream in(command);
      std::string verb;
      in >> verb;
      if (verb == "communication" && training_) return training_->communication();
      Task task;
      int count = 0;
      in >> task.model >> task.option >> task.batch >> count;
      if (in && verb == "train") return train(task, count);
      int batches = 0;
      in >> batches;
      if (in && verb == "run") return run(task, count, batches);
    } catch (const std::exception& error) {
      give_up(error.what());
    }
    give_up("unknown command " + command);
  }

 private:
  // The old model goes before the new one comes: there may be no room for both.
  Training& begin(const Task& task) {
    training_.reset();
    task_ = task;
    return training_.emplace(task, plain_);
  }

  std::string train(const Task& task, int steps) {
    Training& training = begin(task);
    std::string losses;
    for (int i = 0; i < steps; ++i) losses += cat(" ", training.step().item<float>());
    return cat("trained ", training.gradient_bytes(), " ", training.digest(), losses);
  }

  std::string run(const Task& task, int iterations, int batches) {
    Training& training = training_ && task == task_ ? *training_ : begin(task);
    std::int64_t cpu = 0;
    std::string times;
    at::Tensor loss;
    for (int batch = -1; batch < batches; ++batch) {
      if (batch == 0) training.forget_communication();
      lockstep::barrier();
      const std::int64_t cpu_start = nanoseconds(CLOCK_PROCESS_CPUTIME_ID);
      const std::int64_t start = nanoseconds(CLOCK_MONOTONIC);
      for (int i = 0; i < iterations; ++i) loss = training.step();
      const std::int64_t end = nanoseconds(CLOCK_MONOTONIC);
      const std::int64_t cpu_end = nanoseconds(CLOCK_PROCESS_CPUTIME_ID);
      lockstep::barrier();
      if (batch < 0) continue;
      cpu += cpu_end - cpu_start;
      times += cat(" ", start, " ", end);
    }
    const bool verified =
        std::isfinite(loss.item<float>()) && (plain_ || equal_on_all_ranks(training.digest()));
    return cat("ran ", verified ? 1 : 0, " ", cpu, times);
  }

  static bool equal_on_all_ranks(std::int64_t number) {
    const at::Tensor own = torch::full({1}, number, at::kLong);
    const at::Tensor most = own.clone();
    const at::Tensor least = own.clone();
    all_reduce(most, {.op = ReduceOp::kMax});
    all_reduce(least, {.op = ReduceOp::kMin});
    return most.equal(least);
  }

  WorldHandle world_;
  const bool plain_;
  Task task_;
  std::optional<Training> training_;
};

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  return lockstep::bench::answer_commands<lockstep::bench::TrainingPeer>(argc, argv);
}
