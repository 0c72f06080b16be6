#include "parity_training.h"

#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <vector>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/state_dict.h"
#include "lockstep/tensor/groups.h"
#include "parity_nets.h"

namespace lockstep::testing {
namespace {

using nlohmann::json;
using Model = DistributedDataParallel<ParityNet>;

at::Tensor read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return torch::jit::pickle_load(bytes).toTensor();
}

// All of them, or some hundreds of those of a large one.
std::vector<double> numbers(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.is_sparse() ? tensor.detach().to_dense() : tensor.detach();
  const std::int64_t every = std::max<std::int64_t>(1, dense.numel() / 500);
  const at::Tensor flat = dense.reshape({-1}).slice(0, {}, {}, every).to(at::kDouble).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

json gradients(const ParityNet& net) {
  json all = json::object();
  for (const auto& item : net.named_parameters())
    all[item.key()] = item.value().grad().defined() ? json(numbers(item.value().grad())) : json();
  return all;
}

json buffers(const ParityNet& net) {
  json all = json::object();
  for (const auto& item : net.named_buffers()) all[item.key()] = numbers(item.value());
  return all;
}

// The names of the parameters in each.
json buckets(const Model& model) {
  const ddp::Gradients& gradients = model.core().gradients();
  json all = json::array();
  for (const auto& bucket : gradients.plan().buckets) {
    json names = json::array();
    for (const std::size_t parameter : bucket) names.push_back(gradients.name(parameter));
    all.push_back(names);
  }
  return all;
}

// Each once: one may have several names.
std::vector<at::Tensor> parameters(const ParityNet& net) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : net.parameters()) {
    if (std::none_of(all.begin(), all.end(), [&](const auto& other) { return other.is_same(parameter); }))
      all.push_back(parameter);
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

DataParallelOptions options_of(const json& how) {
  DataParallelOptions options;
  set(options.find_unused_parameters, how, "find_unused_parameters");
  set(options.static_graph, how, "static_graph");
  set(options.gradient_as_bucket_view, how, "gradient_as_bucket_view");
  set(options.forward_sync_buffers, how, "forward_sync_buffers");
  set(options.broadcast_buffers, how, "broadcast_buffers");
  set(options.parameters_and_buffers_to_ignore, how, "parameters_and_buffers_to_ignore");
  set(options.skip_all_reduce_unused_params, how, "skip_all_reduce_unused_params");
  set(options.delay_all_reduce_named_params, how, "delay_all_reduce_named_params");
  set(options.param_to_hook_all_reduce, how, "param_to_hook_all_reduce");
  set(options.bucket_cap_mb, how, "bucket_cap_mb");
  set(options.bucket_cap_mb_list, how, "bucket_cap_mb_list");
  set(options.batched_grad_copy, how, "batched_grad_copy");
  return options;
}

CommHookPtr hook_of(const std::string& name) {
  static const std::map<std::string, CommHookPtr> kHooks = {
      {"all_reduce", all_reduce_hook()},
      {"fp16", fp16_compress_hook()},
      {"bf16", bf16_compress_hook()},
      {"fp16 around all_reduce", fp16_compress_wrapper(all_reduce_hook())},
      {"bf16 around all_reduce", bf16_compress_wrapper(all_reduce_hook())},
      {"noop", noop_hook()}};
  return kHooks.at(name);
}

struct Step {
  Model& model;
  const at::Tensor& x;
  bool use_c;
  bool use_d;

  at::Tensor loss(const at::Tensor& of) const { return model(of, use_c, use_d).square().mean(); }
};

at::Tensor plain(const Step& step) {
  at::Tensor loss = step.loss(step.x);
  loss.backward();
  return loss;
}

// How a step comes from a batch to gradients, by name; each gives the loss.
const std::map<std::string, std::function<at::Tensor(const Step&)>> kPasses = {
    {"plain", plain},
    {"accumulated",
     [](const Step& step) {
       {
         const auto guard = step.model.no_sync();
         step.loss(step.x).backward();
       }
       return plain(step);
     }},
    {"two_forwards",
     [](const Step& step) {
       const at::Tensor first = step.loss(step.x);
       at::Tensor loss = first + step.loss(-step.x);
       loss.backward();
       return loss;
     }},
    {"two_backwards",
     [](const Step& step) {
       const at::Tensor first = step.loss(step.x);
       const at::Tensor second = step.loss(-step.x);
       first.backward();
       second.backward();
       return first + second;
     }},
    {"retained",
     [](const Step& step) {
       at::Tensor loss = step.loss(step.x);
       loss.backward({}, /*retain_graph=*/true);
       loss.backward();
       return loss;
     }},
    {"forward_in_vain",
     [](const Step& step) {
       step.loss(step.x);
       return plain(step);
     }},
    {"evaluated_between", [](const Step& step) {
       step.model.eval();
       {
         const torch::NoGradGuard no_grad;
         step.loss(step.x);
       }
       step.model.train();
       return plain(step);
     }}};

json train(const json& how, const std::string& folder) {
  const int rank = get_rank();
  const auto name = how["net"].get<std::string>();
  const std::shared_ptr<ParityNet> net = make_parity_net(name);
  load_state_dict(*net, folder + "/" + name + ".pt");
  for (const at::Tensor& buffer : net->buffers()) buffer.add_(rank);
  Model model(net, options_of(how));
  if (how.contains("hook")) model.register_comm_hook(hook_of(how["hook"]));
  torch::optim::SGD optimizer(parameters(*net),
                              torch::optim::SGDOptions(how["rate"].get<double>()).momentum(0.9));
  const json first_buckets = buckets(model);
  json steps = json::array();
  for (const json& uses : how["uses"]) {
    const at::Tensor x = read(folder + "/batch" + std::to_string(steps.size()) + "_" + std::to_string(rank));
    const json& own = uses[static_cast<std::size_t>(rank)];
    const Step step{.model = model, .x = x, .use_c = own[0].get<bool>(), .use_d = own[1].get<bool>()};
    const at::Tensor loss = kPasses.at(how["pass"].get<std::string>())(step);
    steps.push_back(
        {{"loss", loss.item<double>()}, {"gradients", gradients(*net)}, {"buffers", buffers(*net)}});
    optimizer.step();
    optimizer.zero_grad(!how.value("zeroed", false));
  }
  return {{"steps", steps},
          {"buckets", {first_buckets, buckets(model)}},
          {"logged", json::parse(model.logging_data().json())}};
}

}  // namespace

json run_trainings(const json& trainings, const std::string& folder) {
  json all = json::array();
  for (const json& how : trainings) all.push_back(train(how, folder));
  return all;
}

}  // namespace lockstep::testing
