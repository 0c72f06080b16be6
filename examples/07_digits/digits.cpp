// 07: trains a small network on handwritten digits, on as many ranks as there are.
//
// Run (make demo fetches the data to build/data/digits.csv: 1,797 images of 8 x 8 from the UCI repository):
//   lockstep run --nproc 2 build/release/examples/07_digits build/data/digits.csv [--report FOLDER]
// or give it a folder with the four files of MNIST, unpacked (make demo MNIST=FOLDER unpacks them).
//
// Prints a progress bar, then (the figures differ):
//   test accuracy 98.3 % of 360 images that it was not trained on
//   2 replicas: all 85066 weights are bitwise equal
//   one process that adds the gradients of the ranks in order: bitwise equal
//
// Ends with 1 if the accuracy is below 97 %, or anything is not equal.

#include <lockstep/lockstep.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <stdexcept>
#include <system_error>

#include "digits_data.h"
#include "pictures.h"

namespace {

constexpr std::size_t kBatch = 32;  // on each rank

struct Net : torch::nn::Module {
  explicit Net(std::int64_t side) : hidden(64 * (side / 2) * (side / 2), 64) {
    register_module("first", first);
    register_module("second", second);
    register_module("hidden", hidden);
    register_module("head", head);
  }
  at::Tensor forward(at::Tensor x) {
    x = torch::max_pool2d(torch::relu(second(torch::relu(first(x)))), 2);
    return torch::log_softmax(head(torch::relu(hidden(x.flatten(1)))), 1);
  }
  torch::nn::Conv2d first{torch::nn::Conv2dOptions(1, 32, 3).padding(1)};
  torch::nn::Conv2d second{torch::nn::Conv2dOptions(32, 64, 3).padding(1)};
  torch::nn::Linear hidden;
  torch::nn::Linear head{64, 10};
};

std::shared_ptr<Net> make_net(const Digits& digits) {
  torch::manual_seed(7);
  return std::make_shared<Net>(digits.side());
}

torch::optim::AdamOptions optimizer_options() { return torch::optim::AdamOptions(0.002).weight_decay(0.001); }

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& labels) {
  return torch::nll_loss(output, labels);
}

at::Tensor weights_of(const Net& net) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& parameter : net.parameters()) flat.push_back(parameter.detach().flatten());
  return torch::cat(flat);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

double accuracy(Net& net, const Digits& digits) {
  const torch::NoGradGuard no_grad;  // no rank waits for another here
  std::int64_t right = 0;
  for (std::int64_t from = 0; from < digits.size(); from += 1000) {
    const Digits part = digits.part(from, std::min(from + 1000, digits.size()));
    right += net.forward(part.images).argmax(1).eq(part.labels).sum().item<std::int64_t>();
  }
  return static_cast<double>(right) / static_cast<double>(digits.size());
}

// What the passes of this rank say.
struct Watch {
  double running = 0;  // seconds of communication
  double waiting = 0;  // of these, after backward
  std::vector<lockstep::PassEvent> last;
  void operator()(const lockstep::PassEvent& event) {
    if (event.phase == lockstep::PassPhase::kForward) last.clear();
    last.push_back(event);
    running += std::chrono::duration<double>(event.running).count();
    waiting += std::chrono::duration<double>(event.waiting).count();
  }
  double hidden() const { return running > 0 ? std::max(0.0, 1 - waiting / running) : 1; }
};

struct Progress {
  int epoch = 0;
  int epochs = 0;
  double share = 0;  // of the epoch
  double samples_per_second = 0;
  double loss = 0;
};

void show(const Progress& now, const Watch& watch) {
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  if (!terminal && now.share < 1) return;
  const int done = static_cast<int>(24 * now.share);
  std::printf("%sepoch %2d/%d [%s%s] %6.0f samples/s  loss %.4f  %3.0f %% of communication hidden%s",
              terminal ? "\r" : "", now.epoch + 1, now.epochs, std::string(done, '#').c_str(),
              std::string(24 - done, '.').c_str(), now.samples_per_second, now.loss, 100 * watch.hidden(),
              terminal ? (now.epoch + 1 == now.epochs && now.share >= 1 ? "\n" : "") : "\n");
  std::fflush(stdout);
}

// One process that does what all ranks do: the gradients of their batches, added in the order of ranks.
std::shared_ptr<Net> train_alone(const Digits& digits, int epochs, int ranks) {
  const auto net = make_net(digits);
  torch::optim::Adam optimizer(net->parameters(), optimizer_options());
  for (int epoch = 0; epoch < epochs; ++epoch) {
    std::vector<lockstep::DistributedSampler> samplers;
    for (int rank = 0; rank < ranks; ++rank) {
      samplers.emplace_back(static_cast<std::size_t>(digits.size()),
                            lockstep::SamplerOptions{.num_replicas = ranks, .rank = rank});
      samplers.back().set_epoch(static_cast<std::size_t>(epoch));
      samplers.back().reset();
    }
    while (auto indices = samplers[0].next(kBatch)) {
      optimizer.zero_grad();
      for (int rank = 0; rank < ranks; ++rank) {
        if (rank > 0) indices = samplers[static_cast<std::size_t>(rank)].next(kBatch);
        const Digits batch = digits.pick(*indices);
        loss_of(net->forward(batch.images), batch.labels).backward();
      }
      if (ranks > 1) {
        for (at::Tensor& parameter : net->parameters()) parameter.mutable_grad().div_(ranks);
      }
      optimizer.step();
    }
  }
  return net;
}

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw std::runtime_error("cannot make the folder " + path + ": " + error.message());
}

int run(const std::string& data, const std::string& report) {
  if (!report.empty()) make_folder(report);
  torch::set_num_threads(1);
  const auto world = lockstep::init_process_group();
  const int rank = lockstep::get_rank();
  const int ranks = lockstep::get_world_size();
  const auto [train, test, epochs] = read_data(data);

  const auto net = make_net(train);
  lockstep::DistributedDataParallel model(net, {.bucket_cap_mb = 0.05});
  Watch watch;
  model.observe([&](const lockstep::PassEvent& event) { watch(event); });
  torch::optim::Adam optimizer(model.parameters(), optimizer_options());
  lockstep::DistributedSampler sampler(static_cast<std::size_t>(train.size()));
  std::vector<double> losses;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    sampler.set_epoch(static_cast<std::size_t>(epoch));
    sampler.reset();
    const auto begin = std::chrono::steady_clock::now();
    std::size_t seen = 0;
    while (const auto indices = sampler.next(kBatch)) {
      const Digits batch = train.pick(*indices);
      optimizer.zero_grad();
      at::Tensor loss = loss_of(model(batch.images), batch.labels);
      loss.backward();  // buckets travel while this runs
      optimizer.step();
      loss = loss.detach();
      lockstep::all_reduce(loss, {.op = lockstep::ReduceOp::kAvg});
      losses.push_back(loss.item<double>());
      seen += indices->size() * static_cast<std::size_t>(ranks);
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
      if (rank == 0) {
        show({.epoch = epoch,
              .epochs = epochs,
              .share = static_cast<double>(seen) / static_cast<double>(sampler.size() * ranks),
              .samples_per_second = static_cast<double>(seen) / spent.count(),
              .loss = losses.back()},
             watch);
      }
    }
  }

  const at::Tensor weights = weights_of(*net);
  std::vector<at::Tensor> replicas;
  for (int r = 0; r < ranks; ++r) replicas.push_back(torch::empty_like(weights));
  lockstep::all_gather(replicas, weights);
  if (rank != 0) return 0;
  bool good = true;
  const double right = accuracy(*net, test);
  std::cout << "test accuracy " << std::round(right * 1000) / 10 << " % of " << test.size()
            << " images that it was not trained on\n";
  good = good && right > 0.97;
  bool equal = true;
  for (const at::Tensor& replica : replicas) equal = equal && same_bits(replica, weights);
  std::cout << ranks << " replicas: all " << weights.numel() << " weights are "
            << (equal ? "bitwise equal" : "NOT equal") << "\n";
  good = good && equal;
  equal = same_bits(weights_of(*train_alone(train, epochs, ranks)), weights);
  std::cout << "one process that adds the gradients of the ranks in order: "
            << (equal ? "bitwise equal" : "NOT equal") << "\n";
  good = good && equal;
  if (!report.empty()) {
    pictures::write_loss(report + "/loss.svg", losses);
    std::cout << "pictures: " << report << "/loss.svg";
    if (!watch.last.empty()) {
      pictures::write_timeline(report + "/timeline.svg", watch.last);
      std::cout << " and " << report << "/timeline.svg";
    }
    std::cout << "\n";
  }
  return good ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  const std::vector<std::string> arguments(words + 1, words + count);
  const bool with_report = arguments.size() == 3 && arguments[1] == "--report";
  if (arguments.size() != 1 && !with_report) {
    std::cerr << "usage: 07_digits {FILE,FOLDER} [--report FOLDER]\n";
    return 2;
  }
  try {
    return run(arguments[0], with_report ? arguments[2] : "");
  } catch (const std::invalid_argument& error) {  // such as RANK=x
    std::cerr << error.what() << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
