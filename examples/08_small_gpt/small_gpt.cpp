// 08: trains a small GPT on the text of this repository's docs, character by character, on as many ranks as
// there are. Its blocks are activation checkpoints: backward runs them again instead of keeping what they
// computed.
//
// Run:
//   lockstep run --nproc 2 build/release/examples/08_small_gpt docs [--steps N]
//
// Prints, on rank 0 (the figures differ, the losses are those of 300 steps on two ranks):
//   289511 characters of 20 files, 115 different ones
//   step   0: loss 4.87
//   step  50: loss 2.61
//   ...
//   it writes: the the the the the the the the the the the the the the the the
//   2 replicas: all 117875 weights are bitwise equal
//
// Ends with 1 if the loss has not gone down, or anything is not equal.

#include <lockstep/lockstep.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <stdexcept>

namespace {

namespace nn = torch::nn;

constexpr std::int64_t kWidth = 64;
constexpr std::int64_t kLength = 48;  // of a window of text
constexpr std::size_t kBatch = 8;     // windows, on each rank
constexpr int kBlocks = 2;

// The text as numbers, and the characters that they stand for.
struct Text {
  explicit Text(const std::string& folder) {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".md") paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());  // the same on every rank
    std::string all;
    for (const auto& path : paths) {
      std::ifstream file(path);
      all.append(std::istreambuf_iterator<char>(file), {});
    }
    files = paths.size();
    std::map<char, std::int64_t> numbers;
    for (const char c : all) numbers.emplace(c, 0);
    for (auto& [c, number] : numbers) {
      number = static_cast<std::int64_t>(characters.size());
      characters.push_back(c);
    }
    std::vector<std::int64_t> read;
    for (const char c : all) read.push_back(numbers[c]);
    tokens = torch::tensor(read);
    if (tokens.numel() <= kLength) throw std::runtime_error(folder + " has no text in files *.md.");
  }
  // The windows that begin at these places: what is read, and what comes next.
  std::pair<at::Tensor, at::Tensor> windows(const std::vector<std::size_t>& begins) const {
    std::vector<at::Tensor> rows;
    for (const std::size_t begin : begins)
      rows.push_back(tokens.narrow(0, static_cast<std::int64_t>(begin), kLength + 1));
    const at::Tensor all = torch::stack(rows);
    return {all.narrow(1, 0, kLength), all.narrow(1, 1, kLength)};
  }
  std::size_t files = 0;
  std::string characters;
  at::Tensor tokens;
};

struct Block : nn::Module {
  Block() {
    register_module("norm", norm);
    register_module("mix", mix);
    register_module("out", out);
    register_module("second_norm", second_norm);
    register_module("wide", wide);
    register_module("narrow", narrow);
  }
  at::Tensor forward(const at::Tensor& x) {
    const std::vector<at::Tensor> parts = mix(norm(x)).chunk(3, -1);
    const at::Tensor scores = parts[0].matmul(parts[1].transpose(1, 2)) / std::sqrt(double(kWidth));
    const at::Tensor later = torch::ones({x.size(1), x.size(1)}, at::kBool).triu(1);
    const at::Tensor seen = scores.masked_fill(later, -1e9).softmax(-1).matmul(parts[2]);
    const at::Tensor y = x + out(seen);
    return y + narrow(torch::gelu(wide(second_norm(y))));
  }
  nn::LayerNorm norm{nn::LayerNormOptions({kWidth})};
  nn::Linear mix{kWidth, 3 * kWidth};
  nn::Linear out{kWidth, kWidth};
  nn::LayerNorm second_norm{nn::LayerNormOptions({kWidth})};
  nn::Linear wide{kWidth, 4 * kWidth};
  nn::Linear narrow{4 * kWidth, kWidth};
};

struct Gpt : nn::Module {
  explicit Gpt(std::int64_t tokens) : token(nn::EmbeddingOptions(tokens, kWidth)), head(kWidth, tokens) {
    register_module("token", token);
    place = register_parameter("place", torch::randn({kLength, kWidth}) * 0.02);
    for (int i = 0; i < kBlocks; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>()));
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor x = token(input) + place.narrow(0, 0, input.size(1));
    for (const auto& block : blocks)
      x = lockstep::checkpoint([block](const at::Tensor& y) { return block->forward(y); }, x);
    return head(x);
  }
  nn::Embedding token;
  at::Tensor place;
  std::vector<std::shared_ptr<Block>> blocks;
  nn::Linear head;
};

std::string write(Gpt& net, const Text& text, const std::string& begin, int length) {
  const torch::NoGradGuard no_grad;
  std::vector<std::int64_t> written;
  for (const char c : begin) written.push_back(static_cast<std::int64_t>(text.characters.find(c)));
  for (int i = 0; i < length; ++i) {
    const auto last = written.end() - std::min<std::ptrdiff_t>(kLength, std::ssize(written));
    const at::Tensor input = torch::tensor(std::vector<std::int64_t>(last, written.end())).unsqueeze(0);
    written.push_back(net.forward(input)[0][-1].argmax().item<std::int64_t>());
  }
  std::string line;
  for (const std::int64_t number : written) {
    const char c = text.characters[static_cast<std::size_t>(number)];
    line.push_back(c == '\n' ? ' ' : c);
  }
  return line;
}

bool replicas_are_equal(const nn::Module& net) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : net.parameters()) all.push_back(parameter.detach().flatten());
  const at::Tensor own = torch::cat(all);
  const at::Tensor of_ranks = torch::empty({lockstep::get_world_size(), own.numel()});
  lockstep::all_gather_single(of_ranks, own);
  return (of_ranks == own).all().item<bool>();
}

int train(const std::string& folder, int steps) {
  const auto world = lockstep::init_process_group();
  const bool first = lockstep::get_rank() == 0;
  const Text text(folder);
  if (first)
    std::printf("%lld characters of %zu files, %zu different ones\n",
                static_cast<long long>(text.tokens.numel()), text.files, text.characters.size());
  torch::manual_seed(1);
  auto net = std::make_shared<Gpt>(static_cast<std::int64_t>(text.characters.size()));
  lockstep::DistributedDataParallel model(net);
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(3e-3));
  lockstep::DistributedSampler sampler(static_cast<std::size_t>(text.tokens.numel() - kLength));
  std::size_t epoch = 0;
  double at_first = 0;
  double now = 0;
  for (int step = 0; step < steps; ++step) {
    auto begins = sampler.next(kBatch);
    if (!begins) {
      sampler.set_epoch(++epoch);
      sampler.reset();
      begins = sampler.next(kBatch);
    }
    const auto [input, target] = text.windows(*begins);
    optimizer.zero_grad();
    const at::Tensor loss = torch::cross_entropy_loss(model(input).flatten(0, 1), target.flatten());
    loss.backward();
    optimizer.step();
    now = loss.item<double>();
    if (step == 0) at_first = now;
    if (first && step % 50 == 0) std::printf("step %3d: loss %.2f\n", step, now);
  }
  const bool equal = replicas_are_equal(*net);
  if (first) {
    std::printf("step %3d: loss %.2f\nit writes: %s\n", steps, now, write(*net, text, "the ", 60).c_str());
    std::int64_t weights = 0;
    for (const at::Tensor& parameter : net->parameters()) weights += parameter.numel();
    std::printf("%d replicas: all %lld weights are %s\n", lockstep::get_world_size(),
                static_cast<long long>(weights), equal ? "bitwise equal" : "NOT equal");
  }
  return equal && now < at_first - 0.5 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 4) {
    std::cerr << "usage: 08_small_gpt FOLDER [--steps N]\n";
    return 2;
  }
  try {
    return train(argv[1], argc == 4 ? std::stoi(argv[3]) : 300);
  } catch (const std::invalid_argument& error) {  // such as RANK=x
    std::cerr << error.what() << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
