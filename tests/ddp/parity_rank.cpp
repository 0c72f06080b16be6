// One rank of parity.py, on our side.
//
//   ddp_parity_rank FOLDER   does what case.json of the folder says, with the weights and batches that lie
//   there;
//                            what comes of it rank 0 writes to lockstep.json, or prints for samplers
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/sampler.h"
#include "lockstep/ddp/state_dict.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/groups.h"
#include "lockstep/tensor/init.h"

namespace {

namespace nn = torch::nn;
using nlohmann::json;

// The nets are the Python ones.
struct ParityNet : nn::Module {
  virtual at::Tensor forward(const at::Tensor& x, bool use_c, bool use_d) = 0;
};

// Four layers of which some may be left out, and a BatchNorm.
struct Net : ParityNet {
  Net() {
    register_module("a", a);
    register_module("norm", norm);
    register_module("b", b);
    register_module("c", c);
    register_module("d", d);
  }
  at::Tensor forward(const at::Tensor& x, bool use_c, bool use_d) override {
    at::Tensor y = torch::relu(norm(a(x)));
    y = b(y);
    if (use_c) y = y + c(y);
    if (use_d) y = y + d(y);
    return y;
  }
  nn::Linear a{8, 16};
  nn::BatchNorm1d norm{16};
  nn::Linear b{16, 16};
  nn::Linear c{16, 16};
  nn::Linear d{16, 16};
};

struct Wide : ParityNet {
  Wide() {
    const std::array widths = {8, 1500, 1100, 1900, 1300, 900, 1000, 16};
    for (std::size_t i = 1; i < widths.size(); ++i) layers->push_back(nn::Linear(widths[i - 1], widths[i]));
    register_module("layers", layers);
  }
  at::Tensor forward(const at::Tensor& x, bool /*use_c*/, bool /*use_d*/) override {
    at::Tensor y = x;
    for (const auto& layer : *layers) y = torch::tanh(3 * layer->as<nn::Linear>()->forward(y));
    return y;
  }
  nn::ModuleList layers;
};

std::shared_ptr<ParityNet> make_parity_net(const std::string& name) {
  if (name == "wide") return std::make_shared<Wide>();
  return std::make_shared<Net>();
}

at::Tensor read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return torch::jit::pickle_load(bytes).toTensor();
}

// All of them, or some hundreds of those of a large one.
std::vector<double> numbers(const at::Tensor& tensor) {
  const std::int64_t every = std::max<std::int64_t>(1, tensor.numel() / 500);
  const at::Tensor flat = tensor.detach().reshape({-1}).slice(0, {}, {}, every).to(at::kDouble).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

json gradients(const ParityNet& net) {
  json all = json::object();
  for (const auto& item : net.named_parameters())
    all[item.key()] = item.value().grad().defined() ? json(numbers(item.value().grad())) : json();
  return all;
}

// Those of the last rank.
json buffers(const ParityNet& net) {
  json all = json::object();
  for (const auto& item : net.named_buffers()) {
    const at::Tensor copy = item.value().clone();
    lockstep::broadcast(copy, {.src = lockstep::get_world_size() - 1});
    all[item.key()] = numbers(copy);
  }
  return all;
}

template <typename T>
void set(T& option, const json& how, const char* name) {
  if (how.contains(name)) option = how[name].get<T>();
}
template <typename T>
void set(std::optional<T>& option, const json& how, const char* name) {
  if (how.contains(name)) option = how[name].get<T>();
}

lockstep::DataParallelOptions options_of(const json& how) {
  lockstep::DataParallelOptions options;
  set(options.find_unused_parameters, how, "find_unused_parameters");
  set(options.static_graph, how, "static_graph");
  set(options.gradient_as_bucket_view, how, "gradient_as_bucket_view");
  set(options.forward_sync_buffers, how, "forward_sync_buffers");
  set(options.broadcast_buffers, how, "broadcast_buffers");
  set(options.skip_all_reduce_unused_params, how, "skip_all_reduce_unused_params");
  set(options.delay_all_reduce_named_params, how, "delay_all_reduce_named_params");
  set(options.param_to_hook_all_reduce, how, "param_to_hook_all_reduce");
  set(options.bucket_cap_mb, how, "bucket_cap_mb");
  set(options.bucket_cap_mb_list, how, "bucket_cap_mb_list");
  set(options.batched_grad_copy, how, "batched_grad_copy");
  return options;
}

// What each step has come to.
json train(const json& how, const std::string& folder) {
  const int rank = lockstep::get_rank();
  const auto name = how["net"].get<std::string>();
  const std::shared_ptr<ParityNet> net = make_parity_net(name);
  lockstep::load_state_dict(*net, folder + "/" + name + ".pt");
  for (const at::Tensor& buffer : net->buffers()) buffer.add_(rank);
  lockstep::DistributedDataParallel model(net, options_of(how));
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  json steps = json::array();
  for (int step = 0; step < how["steps"].get<int>(); ++step) {
    const bool accumulate = how.value("accumulate", false) && step % 2 == 0;
    const at::Tensor x = read(folder + "/batch" + std::to_string(step) + "_" + std::to_string(rank));
    const auto uses = how["uses"][static_cast<std::size_t>(step)][static_cast<std::size_t>(rank)];
    const auto forward = [&] { return model(x, uses[0].get<bool>(), uses[1].get<bool>()).square().mean(); };
    if (accumulate) {
      const auto guard = model.no_sync();
      forward().backward();
      continue;
    }
    const at::Tensor loss = forward();
    loss.backward();
    steps.push_back({{"loss", loss.item<double>()},
                     {"gradients", gradients(*net)},
                     {"buffers", buffers(*net)},
                     {"logged", json::parse(model.logging_data().json())},
                     {"buckets", model.core().gradients().plan().buckets}});
    optimizer.step();
    optimizer.zero_grad();
  }
  return steps;
}

json train_all(const json& trainings, const std::string& folder) {
  json all = json::array();
  for (const json& how : trainings) all.push_back(train(how, folder));
  return all;
}

// What is an error there is one here: parity.py has the same situations for torch.
json situations() {
  using Options = lockstep::DataParallelOptions;
  json found = json::object();
  const auto raises = [&](const char* name, const std::function<void(Options)>& act) {
    found[name] = false;
    try {  // in a group of its own, for an error may end it
      act({.process_group = lockstep::new_group({0, 1})});
    } catch (const lockstep::DistError&) {
      found[name] = true;
    } catch (const lockstep::InvalidArgument&) {
      found[name] = true;
    }
  };
  const auto train = [](const std::vector<bool>& uses, const Options& options) {
    lockstep::DistributedDataParallel model(std::make_shared<Net>(), options);
    for (const bool use_d : uses) model(torch::ones({4, 8}), true, use_d).sum().backward();
  };
  const auto registered = [](const Options& options, bool late) {
    lockstep::DistributedDataParallel model(std::make_shared<Net>(), options);
    if (late) model(torch::ones({4, 8}), true, true).sum().backward();
    for (int i = late ? 1 : 0; i < 2; ++i) model.register_comm_hook(lockstep::all_reduce_hook());
  };
  const auto with = [](Options options, bool Options::*flag) {
    options.*flag = true;
    return options;
  };
  const int rank = lockstep::get_rank();
  raises("unused", [&](const Options& options) { train({false, true}, options); });
  raises("unused and looked for", [&](const Options& options) {
    train({false, true, false}, with(options, &Options::find_unused_parameters));
  });
  raises("static", [&](const Options& options) {
    train({false, false, false}, with(options, &Options::static_graph));
  });
  raises("static that changes", [&](const Options& options) {
    train({false, true, true}, with(options, &Options::static_graph));
  });
  raises("registered twice", [&](const Options& options) { registered(options, false); });
  raises("registered late", [&](const Options& options) { registered(options, true); });
  raises("frozen", [](const Options& options) {
    auto net = std::make_shared<Net>();
    for (const at::Tensor& parameter : net->parameters()) parameter.requires_grad_(false);
    lockstep::DistributedDataParallel model(net, options);
  });
  raises("delayed until nothing", [](Options options) {
    options.delay_all_reduce_named_params = {"a.bias"};
    lockstep::DistributedDataParallel model(std::make_shared<Net>(), options);
  });
  raises("shape", [&](const Options& options) {
    lockstep::DistributedDataParallel model(nn::Linear(2, 2 + rank), options);
  });
  raises("type", [&](const Options& options) {
    nn::Linear net(2, 2);
    net->to(rank == 0 ? at::kFloat : at::kDouble);
    lockstep::DistributedDataParallel model(net, options);
  });
  raises("sample rate", [](const Options& options) {
    lockstep::DistributedDataParallel model(std::make_shared<Net>(), options);
    model.set_runtime_logging_sample_rate(0);
  });
  return found;
}

int sample(const json& cases) {
  for (const json& each : cases) {
    lockstep::SamplerOptions options{.num_replicas = each["replicas"].get<int>(),
                                     .rank = each["rank"].get<int>(),
                                     .shuffle = each["shuffle"].get<bool>(),
                                     .seed = each["seed"].get<std::uint64_t>(),
                                     .drop_last = each["drop_last"].get<bool>()};
    lockstep::DistributedSampler sampler(each["size"].get<std::size_t>(), options);
    sampler.set_epoch(each["epoch"].get<std::size_t>());
    sampler.reset();
    const auto all = sampler.next(sampler.size() + 1);
    std::cout << json(all.value_or(std::vector<std::size_t>())).dump() << "\n";
  }
  return 0;
}

}  // namespace

int main(int, char** words) {
  const std::string folder = words[1];
  json how;
  std::ifstream(folder + "/case.json") >> how;
  if (how.is_array()) return sample(how);
  try {
    const auto world = lockstep::init_process_group();
    torch::set_num_threads(1);
    const json found = how.contains("trainings") ? train_all(how["trainings"], folder) : situations();
    if (lockstep::get_rank() == 0) std::ofstream(folder + "/lockstep.json") << found;
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
