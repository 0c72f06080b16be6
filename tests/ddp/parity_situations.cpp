#include "parity_situations.h"

#include <c10/util/Exception.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/groups.h"
#include "parity_nets.h"

namespace lockstep::testing {
namespace {

namespace nn = torch::nn;
using Model = DistributedDataParallel<ParityNet>;
using Options = DataParallelOptions;
using Layers = std::map<std::string, std::shared_ptr<nn::Module>>;

// Whether layers c and d are used.
struct Uses {
  bool c = true;
  bool d = true;
};
constexpr Uses kAll = {};
constexpr Uses kNoC = {.c = false};
constexpr Uses kNoD = {.d = false};
constexpr Uses kNeither = {.c = false, .d = false};

std::vector<int> everybody() {
  std::vector<int> ranks(static_cast<std::size_t>(get_world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

at::Tensor ones() { return torch::ones({4, 8}); }
at::Tensor loss_of(Model& model, Uses uses = kAll) { return model(ones(), uses.c, uses.d).sum(); }

nn::Module& layer(ParityNet& net, const std::string& name) { return *net.named_children()[name]; }
void set_trained(ParityNet& net, const std::string& name, bool trained) {
  for (at::Tensor& parameter : layer(net, name).parameters()) parameter.requires_grad_(trained);
}

struct Training {
  std::string net = "net";
  std::vector<Uses> steps;
  CommHookPtr hook = {};
};
void train(const Training& training, const Options& options) {
  Model model(make_parity_net(training.net), options);
  if (training.hook) model.register_comm_hook(training.hook);
  for (const Uses uses : training.steps) loss_of(model, uses).backward();
}

void train_ignoring(const std::vector<std::string>& names, Options options) {
  options.parameters_and_buffers_to_ignore = names;
  train({.net = "odd", .steps = {kAll, kAll}}, options);
}

void train_with_buckets(const std::vector<double>& list, std::optional<double> each, Options options) {
  options.bucket_cap_mb_list = list;
  options.bucket_cap_mb = each;
  train({.steps = {kAll, kAll}}, options);
}

void train_delayed(Options options) {
  options.delay_all_reduce_named_params = {"d.bias"};
  options.param_to_hook_all_reduce = "a.weight";
  train({.steps = {kAll, kAll}}, options);
}

void register_hooks(int times, int steps, const Options& options) {
  Model model(make_parity_net("net"), options);
  for (int i = 0; i < steps; ++i) loss_of(model).backward();
  for (int i = 0; i < times; ++i) model.register_comm_hook(all_reduce_hook());
}

// After the module was wrapped.
void change(const std::function<void(ParityNet&)>& how, const Options& options) {
  const auto net = make_parity_net("net");
  set_trained(*net, "c", false);
  Model model(net, options);
  loss_of(model).backward();
  how(*net);
  for (int i = 0; i < 2; ++i)
    model(ones().to(net->parameters()[0].scalar_type()), true, true).sum().backward();
}

void train_evaluating(const std::vector<Uses>& steps, const Options& options) {
  Model model(make_parity_net("net"), options);
  model.eval();
  for (const Uses uses : steps) loss_of(model, uses).backward();
}

void use_beside_forward(int steps, const Options& options) {
  const auto net = make_parity_net("net");
  Model model(net, options);
  for (int i = 0; i < steps; ++i) {
    const at::Tensor beside = layer(*net, "d").as<nn::Linear>()->forward(ones().repeat({1, 2}));
    (loss_of(model, kNoD) + beside.sum()).backward();
  }
}

void wrap_twice(Options options) {
  const auto net = make_parity_net("net");
  Model first(net, options);
  options.process_group = new_group(everybody());
  Model second(net, options);
  for (int i = 0; i < 2; ++i) {
    const at::Tensor loss = loss_of(first);
    (loss + loss_of(second)).backward();
  }
}

void freeze_by_rank(const std::vector<std::string>& layers, const Options& options) {
  const auto net = make_parity_net("net");
  const std::string& own = layers[static_cast<std::size_t>(get_rank())];
  if (!own.empty()) set_trained(*net, own, false);
  Model model(net, options);
}

// With one of the options, or several.
template <typename... Flags>
Options with(Options options, Flags... flags) {
  ((options.*flags = true), ...);
  return options;
}
constexpr auto kFind = &Options::find_unused_parameters;
constexpr auto kStatic = &Options::static_graph;

struct Situation {
  const char* name;
  std::function<void(const Options&)> act;
};

template <typename... Flags>
Situation training(const char* name, const Training& how, Flags... flags) {
  return {name, [=](const Options& options) { train(how, with(options, flags...)); }};
}

std::vector<Situation> of_uses() {
  return {
      training("unused", {.steps = {kNoD, kAll}}),
      training("unused later", {.steps = {kAll, kNoD, kAll}}),
      {"unused in evaluation",
       [](const Options& options) {
         train_evaluating({kNoD, kAll}, options);
       }},
      training("unused and looked for", {.steps = {kNoD, kAll, kNoD}}, kFind),
      training("unused, looked for, with a hook", {.steps = {kNoD, kAll}, .hook = all_reduce_hook()}, kFind),
      training("static", {.steps = {kNoD, kNoD, kNoD}}, kStatic),
      training("static with a hook", {.steps = {kNoD, kNoD, kNoD}, .hook = all_reduce_hook()}, kStatic),
      training("static that changes", {.steps = {kNoD, kAll, kAll}}, kStatic),
      training("static and looked for", {.steps = {kNoD, kNoD}}, kStatic, kFind),
      training("skipped, and nothing is looked for", {.steps = {kAll, kAll}},
               &Options::skip_all_reduce_unused_params),
      {"one of two forwards uses less",
       [](const Options& options) {
         Model model(make_parity_net("net"), with(options, kFind));
         const at::Tensor first = loss_of(model);
         (first + loss_of(model, kNoD)).backward();
         loss_of(model).backward();
       }},
      {"beside forward", [](const Options& options) { use_beside_forward(1, with(options, kFind)); }},
      {"beside forward, static",
       [](const Options& options) { use_beside_forward(3, with(options, kStatic)); }},
      training("reentrant", {.net = "reentrant", .steps = {kNoC, kNoC}}),
      training("reentrant, twice", {.net = "reentrant", .steps = {kAll, kAll}}),
      training("reentrant, twice and static", {.net = "reentrant", .steps = {kAll, kAll, kAll}}, kStatic),
      training("reentrant and looked for", {.net = "reentrant", .steps = {kNoC}}, kFind),
      training("reentrant and unused", {.net = "reentrant", .steps = {kNeither, kNoC}}),
      training("sparse", {.net = "sparse", .steps = {kAll, kAll}}),
      training("sparse and unused", {.net = "sparse", .steps = {kNoC}}, kFind),
      training("sparse, unused and static", {.net = "sparse", .steps = {kNoC, kNoC}}, kStatic),
      training("sparse in 16 bits", {.net = "sparse", .steps = {kAll}, .hook = fp16_compress_hook()}),
      {"sparse and dense",
       [](const Options& options) {
         Model model(make_parity_net("sparse"), options);
         (loss_of(model) + layer(*model.module(), "c").parameters()[0].sum()).backward();
       }},
      {"backward twice",
       [](const Options& options) {
         Model model(make_parity_net("net"), options);
         const at::Tensor loss = loss_of(model);
         loss.backward();
         loss.backward();
       }},
      {"a graph of gradients",
       [](const Options& options) {
         Model model(make_parity_net("net"), options);
         loss_of(model).backward({}, /*retain_graph=*/true, /*create_graph=*/true);
         model.zero_grad();  // else gradients and graph keep each other
       }},
      {"without a gradient",
       [](const Options& options) {
         Model model(make_parity_net("net"), options);
         loss_of(model).detach().backward();
       }},
      {"two wrappers at once",
       [](const Options& options) {
         Options copies = options;
         copies.gradient_as_bucket_view = false;
         wrap_twice(copies);
       }},
      {"two wrappers at once, with views", wrap_twice},
  };
}

std::vector<Situation> of_options() {
  return {
      {"delayed", train_delayed},
      {"delayed until nothing",
       [](Options options) {
         options.delay_all_reduce_named_params = {"a.bias"};
         Model model(make_parity_net("net"), options);
       }},
      {"delayed and static", [](const Options& options) { train_delayed(with(options, kStatic)); }},
      {"delayed and looked for", [](const Options& options) { train_delayed(with(options, kFind)); }},
      {"registered", [](const Options& options) { register_hooks(1, 0, options); }},
      {"registered twice", [](const Options& options) { register_hooks(2, 0, options); }},
      {"registered late", [](const Options& options) { register_hooks(1, 1, options); }},
      {"no hook",
       [](const Options& options) {
         Model model(make_parity_net("net"), options);
         model.register_comm_hook(CommHookPtr());
       }},
      training("a hook that throws", {.steps = {kAll}, .hook = function_hook([](GradBucket&) -> HookWork {
                                                         throw std::runtime_error("from a hook");
                                                       })}),
      training("a hook of another size", {.steps = {kAll}, .hook = function_hook([](GradBucket& bucket) {
                                                             bucket.set_buffer(torch::zeros(1));
                                                             return HookWork{};
                                                           })}),
      training("bf16 on the CPU", {.steps = {kAll}, .hook = bf16_compress_hook()}),
      {"ignored",
       [](const Options& options) {
         train_ignoring({"own.weight", "seen"}, options);
       }},
      {"ignored, all of them",
       [](const Options& options) {
         train_ignoring(make_parity_net("odd")->named_parameters().keys(), options);
       }},
      {"ignored, though there is none", [](const Options& options) { train_ignoring({"nobody"}, options); }},
      {"buckets of 0 MiB", [](const Options& options) { train_with_buckets({}, 0, options); }},
      {"buckets of -1 MiB", [](const Options& options) { train_with_buckets({}, -1, options); }},
      {"a list of 0 MiB", [](const Options& options) { train_with_buckets({0}, {}, options); }},
      {"a list of -1 MiB", [](const Options& options) { train_with_buckets({-1}, {}, options); }},
      {"a list of nothing", [](const Options& options) { train_with_buckets({}, {}, options); }},
      {"a list and a size", [](const Options& options) { train_with_buckets({1}, 1, options); }},
      {"sample rate",
       [](const Options& options) {
         Model model(make_parity_net("net"), options);
         model.set_runtime_logging_sample_rate(0);
       }},
  };
}

std::vector<Situation> of_models() {
  const auto changed = [](const char* name, std::function<void(ParityNet&)> how) {
    return Situation{name, [how = std::move(how)](const Options& options) { change(how, options); }};
  };
  return {
      {"frozen",
       [](const Options& options) {
         const auto net = make_parity_net("net");
         for (at::Tensor& parameter : net->parameters()) parameter.requires_grad_(false);
         Model model(net, options);
       }},
      changed("frozen later", [](ParityNet& net) { set_trained(net, "d", false); }),
      changed("unfrozen later", [](ParityNet& net) { set_trained(net, "c", true); }),
      changed("added later", [](ParityNet& net) { net.register_module("e", nn::Linear(2, 2)); }),
      changed("converted later", [](ParityNet& net) { net.to(at::kDouble); }),
      {"a wrapper in a wrapper",
       [](Options options) {
         const auto inner = std::make_shared<Model>(make_parity_net("net"), options);
         options.process_group = new_group(everybody());
         DistributedDataParallel outer(inner, options);
         for (int i = 0; i < 2; ++i) outer(ones(), true, true).sum().backward();
       }},
      {"other names",
       [](const Options& options) {
         nn::Module net;
         for (const char* const name : get_rank() == 0 ? std::array{"a", "b"} : std::array{"b", "a"})
           net.register_module(name, nn::Linear(2, 2));
         DistributedDataParallel model(std::make_shared<nn::Module>(net), options);
       }},
      {"one frozen on one rank",
       [](const Options& options) {
         freeze_by_rank({"", "c"}, options);
       }},
      {"another frozen on one rank",
       [](const Options& options) {
         freeze_by_rank({"b", "c"}, options);
       }},
      {"another shape",
       [](const Options& options) { DistributedDataParallel model(nn::Linear(2, 2 + get_rank()), options); }},
      {"another type",
       [](const Options& options) {
         nn::Linear net(2, 2);
         net->to(get_rank() == 0 ? at::kFloat : at::kDouble);
         DistributedDataParallel model(net, options);
       }},
  };
}

// Empty if none has come of it.
std::string error_of(const Situation& situation) {
  try {
    situation.act({.process_group = new_group(everybody())});  // of its own, for an error may end it
  } catch (const std::runtime_error& error) {                  // DistError, and that of a hook
    return error.what();
  } catch (const InvalidArgument& error) {
    return error.what();
  } catch (const c10::Error& error) {  // autograd's own
    return error.what_without_backtrace();
  }
  return {};
}

}  // namespace

nlohmann::json find_errors() {
  nlohmann::json found = nlohmann::json::object();
  for (const auto& situations : {of_uses(), of_options(), of_models()}) {
    for (const Situation& situation : situations) found[situation.name] = error_of(situation);
  }
  return found;
}

}  // namespace lockstep::testing
