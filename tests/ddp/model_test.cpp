// What a wrapped model is to its user: names, kinds of modules, groups, what it says of itself.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/adaptive.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/rnn.h>
#include <torch/utils.h>

#include <concepts>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <variant>

#include "lockstep/base/log.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/tensor/observer.h"
#include "lockstep/tensor/tensor_test_support.h"

namespace lockstep {
namespace {

namespace nn = torch::nn;
using tensor::run_world;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two layers; forward takes and gives what forward may.
struct PairImpl : nn::Module {
  PairImpl() {
    register_module("first", first);
    register_module("second", second);
    scale = register_parameter("scale", torch::ones({1}));
  }
  struct Output {
    at::Tensor sum;
    std::map<std::string, at::Tensor> parts;
    std::optional<at::Tensor> nothing;
  };
  Output forward(const std::vector<at::Tensor>& inputs, std::optional<double> factor = {}) {
    Output output;
    output.parts["first"] = first(inputs[0]) * scale;
    output.parts["second"] = second(inputs[1]) * factor.value_or(1);
    output.sum = output.parts["first"].sum() + output.parts["second"].sum();
    return output;
  }
  nn::Linear first{3, 2};
  nn::Linear second{3, 2};
  at::Tensor scale;
};
TORCH_MODULE(Pair);

}  // namespace
}  // namespace lockstep

template <>
struct lockstep::ddp::OutputTensors<lockstep::PairImpl::Output> {
  static void visit(const lockstep::PairImpl::Output& output, std::vector<at::Tensor>& found) {
    find_tensors(output.sum, found);
    find_tensors(output.parts, found);
    find_tensors(output.nothing, found);
  }
};

namespace lockstep {
namespace {

std::vector<std::string> names(const nn::Module& module) {
  std::vector<std::string> all;
  for (const auto& item : module.named_parameters()) all.push_back(item.key());
  for (const auto& item : module.named_buffers()) all.push_back(item.key());
  return all;
}

TEST(Model, HasTheNamesOfItsModuleAndReachesIt) {
  run_world(2, [](int) {
    Pair pair;
    DistributedDataParallel model(pair);
    EXPECT_EQ(names(model), names(*pair));
    EXPECT_EQ(model->first->options.in_features(), 3);
    EXPECT_EQ(model.module().get(), pair.get());
    model.train(false);
    EXPECT_FALSE(pair->first->is_training() || pair->is_training());

    struct Outer : nn::Module {
      explicit Outer(const Pair& inner)
          : part(register_module("part", std::make_shared<DistributedDataParallel<PairImpl>>(inner))) {}
      std::shared_ptr<DistributedDataParallel<PairImpl>> part;
    } outer(pair);
    EXPECT_EQ(names(outer).front(), "part.scale");
  });
}

TEST(Model, HasWhatItsModuleIsGivenOrLosesInForwardOrBefore) {
  struct Lazy : nn::Module {
    Lazy() {
      register_module("layer", layer);
      register_module("relu", nn::ReLU());
    }
    at::Tensor forward(const at::Tensor& x) {
      if (!mean.defined()) mean = register_buffer("mean", torch::zeros({2}));
      return layer(x) - mean;
    }
    nn::Linear layer{2, 2};
    at::Tensor mean;
  };
  run_world(2, [](int) {
    const auto net = std::make_shared<Lazy>();
    const auto model = std::make_shared<DistributedDataParallel<Lazy>>(net);
    struct Outer : nn::Module {
    } outer;
    outer.register_module("part", model);
    net->register_buffer("count", torch::zeros({1}));
    net->register_module("norm", nn::BatchNorm1d(nn::BatchNorm1dOptions(2).affine(false)));
    net->unregister_module("relu");
    (*model)(torch::ones({1, 2})).sum().backward();
    EXPECT_EQ(names(*model), names(*net));
    EXPECT_EQ(names(outer).back(), "part.norm.num_batches_tracked");
    EXPECT_EQ(model->named_children().keys(), net->named_children().keys());

    net->register_buffer("last", torch::zeros({2}));
    model->to(at::kDouble);
    EXPECT_EQ(net->named_buffers()["last"].scalar_type(), at::kDouble);
  });
}

// A model inside the module of another.
struct OuterImpl : nn::Module {
  explicit OuterImpl(const ProcessGroup& group)
      : part(register_module("part", std::make_shared<DistributedDataParallel<nn::BatchNorm1dImpl>>(
                                         nn::BatchNorm1d(2), DataParallelOptions{.process_group = group}))),
        head(register_module("head", nn::Linear(2, 2))) {}
  at::Tensor forward(const at::Tensor& x) { return head(part->forward(x)).square(); }
  std::shared_ptr<DistributedDataParallel<nn::BatchNorm1dImpl>> part;
  nn::Linear head;
};
TORCH_MODULE(Outer);

TEST(Model, InsideAnotherReducesItsOwnPartForItsOwnGroup) {
  run_world(2, [](int rank) {
    const ProcessGroup single[] = {tensor::new_group({0}), tensor::new_group({1})};
    for (const ProcessGroup& group : {ProcessGroup(), single[rank]}) {
      torch::manual_seed(rank);
      Outer net(group);
      nn::BatchNorm1d inner(net->part->module());
      {
        const torch::NoGradGuard no_grad;
        inner->weight.fill_(rank + 1);
      }
      inner->running_mean.fill_(rank);
      DistributedDataParallel model(net);
      EXPECT_TRUE(tensor::all_equal(inner->weight, rank + 1));
      EXPECT_TRUE(tensor::all_equal(inner->running_mean, rank));
      EXPECT_EQ(model.logging_data().numbers.at("num_parameter_tensors"), 2);
      DistributedDataParallel after(nn::Linear(2, 1));
      for (int step = 0; step < 3; ++step) {
        const at::Tensor x = torch::randn({4, 2});
        std::vector<at::Tensor> own =
            torch::autograd::grad({after.module()->forward(net->head(inner(x)).square()).sum()},
                                  {inner->weight, net->head->weight, after->weight});
        tensor::all_reduce(own[0], {.op = ReduceOp::kAvg, .group = group});
        for (const at::Tensor& gradient : {own[1], own[2]})
          tensor::all_reduce(gradient, {.op = ReduceOp::kAvg});
        for (nn::Module* const each : std::initializer_list<nn::Module*>{net.get(), &after})
          each->zero_grad();
        after(model(x)).sum().backward();
        EXPECT_TRUE(at::equal(inner->weight.grad(), own[0])) << step;
        EXPECT_TRUE(at::equal(net->head->weight.grad(), own[1])) << step;
        EXPECT_TRUE(at::equal(after->weight.grad(), own[2])) << step;
      }
    }
    Outer net(single[rank]);
    for (const at::Tensor& parameter : net->head->parameters()) parameter.requires_grad_(false);
    tensor::expect_error([&] { DistributedDataParallel model(net); },
                         {"belong to a DistributedDataParallel"});
  });
}

TEST(Model, TakesEveryKindOfModuleAndForward) {
  run_world(2, [](int rank) {
    const at::Tensor x = torch::full({2, 3}, rank + 1.);
    Pair pair;
    DistributedDataParallel model(pair, {.find_unused_parameters = true});
    model(std::vector<at::Tensor>{x, x}, 2.).sum.backward();
    EXPECT_TRUE(tensor::all_equal(pair->second->weight.grad(), 2 * 2 * 1.5));

    nn::AnyModule any(nn::Linear(3, 2));
    DistributedDataParallel from_any(any);
    from_any(x).sum().backward();
    EXPECT_TRUE(tensor::all_equal(any.ptr()->parameters()[0].grad(), 2 * 1.5));
    EXPECT_TRUE(
        at::equal(from_any.forward<at::Tensor>(torch::ones({1, 3})), any.forward(torch::ones({1, 3}))));

    torch::jit::Module script("Scripted");
    script.register_parameter("weight", torch::ones({3, 2}).requires_grad_(), false);
    script.define("def forward(self, x):\n  return (x.matmul(self.weight), x)\n");
    DistributedDataParallel from_jit(script);
    EXPECT_THAT(names(from_jit), ElementsAre("weight"));
    from_jit(std::vector<c10::IValue>{x}).toTuple()->elements()[0].toTensor().sum().backward();
    EXPECT_TRUE(tensor::all_equal(from_jit.parameters()[0].grad(), 2 * 1.5));
    torch::jit::Module named("Named");
    named.register_parameter("weight", torch::ones({3, 2}).requires_grad_(), false);
    named.define("def forward(self, x, *, scale: int):\n  return x.matmul(self.weight) * scale\n");
    DistributedDataParallel by_name(named);
    by_name({x}, {{"scale", 3}}).toTensor().sum().backward();
    EXPECT_TRUE(tensor::all_equal(by_name.parameters()[0].grad(), 3 * 2 * 1.5));
    // Outputs that share their memory are two.
    torch::jit::Module twice("Twice");
    twice.register_parameter("weight", torch::ones({3, 2}).requires_grad_(), false);
    twice.define(
        "def forward(self, x):\n  y = x.matmul(self.weight)\n  return {'plain': [y.detach()], 'graph': "
        "[y]}\n");
    DistributedDataParallel from_twice(twice, {.find_unused_parameters = true});
    const c10::IValue both = from_twice(std::vector<c10::IValue>{x});
    both.toGenericDict().at("graph").toListRef()[0].toTensor().sum().backward();
    EXPECT_TRUE(tensor::all_equal(from_twice.parameters()[0].grad(), 2 * 1.5));

    struct Keeps : nn::Module {
      Keeps() { register_module("layer", layer); }
      void forward(const at::Tensor& in) { output = layer(in); }
      nn::Linear layer{3, 2};
      at::Tensor output;
    };
    DistributedDataParallel keeps(std::make_shared<Keeps>());
    keeps(x);
    keeps->output.sum().backward();
    EXPECT_TRUE(tensor::all_equal(keeps->layer->weight.grad(), 2 * 1.5));

    struct Two : nn::Module {
      Two() { register_module("layer", layer); }
      std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& in) { return {layer(in), in}; }
      nn::Linear layer{3, 2};
    };
    auto two = std::make_shared<Two>();
    DistributedDataParallel any_pair{nn::AnyModule(two)};
    any_pair.forward<std::pair<at::Tensor, at::Tensor>>(x).first.sum().backward();
    EXPECT_TRUE(tensor::all_equal(two->layer->weight.grad(), 2 * 1.5));

    std::shared_ptr<Two> none;
    tensor::expect_error([&] { DistributedDataParallel null(none); }, {cat("rank ", rank), "no module"});
    tensor::expect_error([&] { DistributedDataParallel null(nn::AnyModule{}); }, {"no module"});
    tensor::expect_error([&] { DistributedDataParallel null(nn::Linear(nullptr)); }, {"no module"});
  });
}

// A net of two layers of which one is used, that gives its output in one of torch's own types.
struct GivesImpl : nn::Module {
  GivesImpl() {
    register_module("used", used);
    register_module("unused", unused);
  }
  torch::OrderedDict<std::string, at::Tensor> forward(const at::Tensor& x, int) {
    return torch::OrderedDict<std::string, at::Tensor>{{"y", used(x)}};
  }
  c10::List<at::Tensor> forward(const at::Tensor& x, char) { return c10::List<at::Tensor>({used(x)}); }
  c10::Dict<std::string, at::Tensor> forward(const at::Tensor& x, bool) {
    c10::Dict<std::string, at::Tensor> all;
    all.insert("y", used(x));
    return all;
  }
  nn::utils::rnn::PackedSequence forward(const at::Tensor& x, float) {
    return nn::utils::rnn::pack_padded_sequence(used(x).unsqueeze(0), torch::tensor({2}), true);
  }
  nn::ASMoutput forward(const at::Tensor& x, double) { return {used(x), 0.}; }
  // Types that are ranges of themselves are not looked into, in or out.
  std::filesystem::path forward(const std::filesystem::path& path) { return path; }
  nn::Linear used{3, 2};
  nn::Linear unused{3, 2};
};
TORCH_MODULE(Gives);

TEST(Model, FindsTheTensorsInTorchsOwnTypes) {
  run_world(2, [](int rank) {
    const at::Tensor x = torch::full({2, 3}, rank + 1.);
    Gives net;
    DistributedDataParallel model(net, {.find_unused_parameters = true});
    const auto train = [&](const at::Tensor& output) {
      net->zero_grad();
      output.sum().backward();
      EXPECT_TRUE(tensor::all_equal(net->used->weight.grad(), 2 * 1.5));
      EXPECT_FALSE(net->unused->weight.grad().defined());
    };
    train(model(x, 1)["y"]);
    train(model(x, 'c').get(0));
    train(model(x, true).at("y"));
    train(model(x, 1.F).data());
    train(model(x, 1.).output);
    DistributedDataParallel plain(net);
    EXPECT_EQ(plain(std::filesystem::path("/a/b")), "/a/b");
  });
}

TEST(Model, FindsTheTensorsInVariantsAndReferences) {
  struct Varies : nn::Module {
    Varies() {
      register_module("used", used);
      register_module("unused", unused);
    }
    std::variant<int, at::Tensor> forward(const at::Tensor& x, int) { return used(x); }
    std::reference_wrapper<const at::Tensor> forward(const at::Tensor& x, char) { return kept = used(x); }
    at::Tensor&& forward(const at::Tensor& x, bool) { return std::move(kept = used(x)); }
    nn::Linear used{3, 2};
    nn::Linear unused{3, 2};
    at::Tensor kept;
  };
  run_world(2, [](int rank) {
    const at::Tensor x = torch::full({2, 3}, rank + 1.);
    const auto net = std::make_shared<Varies>();
    DistributedDataParallel model(net, {.find_unused_parameters = true});
    const auto train = [&](const at::Tensor& output) {
      net->zero_grad();
      output.sum().backward();
      EXPECT_TRUE(tensor::all_equal(net->used->weight.grad(), 2 * 1.5));
      EXPECT_FALSE(net->unused->weight.grad().defined());
    };
    train(std::get<at::Tensor>(model(x, 1)));
    train(model(x, 'c').get());
    static_assert(std::same_as<decltype(model(x, true)), at::Tensor&&>);
    train(model(x, true));
  });
}

TEST(Model, EvaluatesWithoutTheOthers) {
  run_world(2, [](int rank) {
    nn::Sequential net(nn::Linear(3, 4), nn::BatchNorm1d(4));
    DistributedDataParallel model(net);
    model(torch::randn({4, 3})).sum().backward();
    if (rank == 1) {
      const torch::NoGradGuard no_grad;
      model(torch::randn({4, 3}));
      model.train(false);
      model(torch::randn({4, 3}));
    }
    model.train(false);
    if (rank == 1) {
      EXPECT_ANY_THROW(model(torch::randn({4, 7})));
      model(torch::randn({4, 3}));
    }
    model.train();
    tensor::barrier();
    net->zero_grad();
    {
      const auto guard = model.no_sync();  // the forward that rank 1 has evaluated begins nothing
      model(torch::randn({4, 3})).sum().backward();
    }
    model(torch::randn({4, 3})).sum().backward();
    const at::Tensor all = torch::empty({2, 4});
    tensor::all_gather_single(all.view({8}), net->parameters()[1].grad());
    EXPECT_TRUE(at::equal(all[0], all[1]));
    // Backward through what was evaluated is synchronised.
    model.train(false);
    net->zero_grad();
    model((rank + 1) * torch::ones({1, 3})).sum().backward();
    EXPECT_TRUE(tensor::all_equal(net->parameters()[3].grad(), 1));
    tensor::all_gather_single(all.view({8}), net->parameters()[1].grad());
    EXPECT_TRUE(at::equal(all[0], all[1]));
  });
}

TEST(Model, SaysWhatItDoes) {
  run_world(2, [](int rank) {
    nn::Sequential net(nn::Linear(4, 4), nn::Linear(4, 2));
    DistributedDataParallel model(net);
    for (int step = 0; step < 3; ++step) model(torch::randn({3, 4})).sum().backward();
    const LoggingData data = model.logging_data();
    EXPECT_EQ(data.numbers.at("world_size"), 2);
    EXPECT_EQ(data.numbers.at("rank"), rank);
    EXPECT_EQ(data.numbers.at("iteration"), 3);
    EXPECT_EQ(data.numbers.at("has_rebuilt_buckets"), 1);
    EXPECT_EQ(data.texts.at("bucket_sizes"), "120");
    EXPECT_EQ(
        data.texts.at("rebuilt_per_bucket_param_indices"),
        data.texts.at("prev_iteration_grad_ready_order_indices") == "3, 2, 1, 0" ? "3 2 1 0" : "2 3 0 1");
    EXPECT_GT(data.numbers.at("avg_backward_comm_time"), 0);
    EXPECT_THAT(data.json(), ::testing::HasSubstr("\"comm_hook\":\"all_reduce\""));
    EXPECT_EQ(data.texts.at("nccl_debug"), "N/A");
    EXPECT_NE(data.texts.at("master_port"), "N/A");
    EXPECT_GE(data.numbers.at("backward_comm_time_end"), data.numbers.at("forward_compute_time_start"));
    tensor::expect_error([&] { model.set_runtime_logging_sample_rate(0); }, {"rate is 0"});
  });
}

TEST(Model, IsIntroducedAndMadeInFewOperations) {
  run_world(2, [](int) {
    nn::Sequential net(nn::Linear(4, 4), nn::BatchNorm1d(4), nn::Linear(4, 2));
    int broadcasts = 0;
    const auto watching = observe([&](const OperationEvent& event) {
      if (event.phase == OperationPhase::kPre && std::string_view(event.op) == "broadcast") ++broadcasts;
    });
    ::testing::internal::CaptureStderr();
    base::configure_logging({.level = base::LogLevel::kInfo});
    DistributedDataParallel model(net, {.static_graph = true, .bucket_cap_mb = 2});
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                ::testing::ContainsRegex("DDP initialized with .*Sequential.*: 6 parameters, .* world of 2, "
                                         "buckets of 2097152, 2097152 bytes, static_graph; .*="));
    EXPECT_EQ(broadcasts, 2);  // of all parameters, and of all buffers
  });
  run_world(1, [](int) {
    nn::Linear net(2, 2);
    DistributedDataParallel model(net);
    int operations = 0;
    const auto watching = observe([&](const OperationEvent&) { ++operations; });
    model(torch::ones({1, 2})).sum().backward();
    EXPECT_EQ(operations, 0);
    EXPECT_EQ(model.core().gradients().buckets(), 0U);  // nothing is made, and nobody listens
    EXPECT_EQ(model.logging_data().numbers.at("iteration"), 1);
  });
}

TEST(Model, IsIntroducedWithTheVariablesOfItsJob) {
  const std::map<std::string, std::string> told = {{"GLOO_SOCKET_IFNAME", "lo"},
                                                   {"NCCL_ALGO", "Ring"},
                                                   {"OMP_PROC_BIND", "true"},
                                                   {"TORCH_NCCL_TRACE_BUFFER_SIZE", "3"}};
  EXPECT_OK(testing::ProcessWorld(2).run([&](const SpawnedRank& rank) {
    Environment environment = rank.environment;
    environment.all.insert(told.begin(), told.end());
    environment.all.emplace("API_TOKEN", "not told");
    const auto world = init_process_group({.environment = environment});
    ::testing::internal::CaptureStderr();
    base::configure_logging({.level = base::LogLevel::kInfo});
    DistributedDataParallel model(nn::Linear(2, 2));
    const std::string said = ::testing::internal::GetCapturedStderr();
    for (const auto& [name, value] : told) EXPECT_THAT(said, HasSubstr(name + "=" + value));
    for (const char* name : {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
      EXPECT_THAT(said, HasSubstr(cat(' ', name, '=', environment.all.at(name))));
    EXPECT_THAT(said, ::testing::Not(HasSubstr("API_TOKEN")));
  }));
}

TEST(Model, GoesOnInAnotherGroupAlsoWithARankThatIsNewThere) {
  for (const bool static_graph : {false, true}) {
    run_world(2, [&](int rank) {
      torch::manual_seed(1);
      const auto group = [] { return tensor::new_group({0, 1}); };
      const ProcessGroup first = group();
      const ProcessGroup second = group();
      DataParallelOptions options{
          .process_group = first, .static_graph = static_graph, .bucket_cap_mb = 1e-6};
      nn::Sequential net(nn::Linear(2, 2), nn::Linear(2, 2));
      std::optional<DistributedDataParallel<nn::SequentialImpl>> model(std::in_place, net, options);
      if (rank == 0) model->register_comm_hook(all_reduce_hook());
      const auto step = [&] {
        net->zero_grad();
        (*model)(torch::full({1, 2}, rank + 1.)).sum().backward();
        EXPECT_TRUE(tensor::all_equal(net->parameters()[3].grad(), 1));
        EXPECT_TRUE(at::allclose(net->parameters()[0].grad().select(1, 0),
                                 1.5 * net->parameters()[2].detach().sum(0)));
      };
      for (int i = 0; i < 3; ++i) step();
      EXPECT_TRUE(model->core().has_rebuilt_buckets());
      if (rank == 0) {
        model->update_process_group(second);
      } else {
        options.process_group = second;
        options.init_sync = false;
        model.emplace(net, options);
      }
      EXPECT_FALSE(model->core().has_rebuilt_buckets());
      for (int i = 0; i < 3; ++i) step();
      EXPECT_TRUE(model->core().has_rebuilt_buckets());
    });
  }
}

TEST(Model, LetsGoOfTheGroupThatItLeaves) {
  run_world(2, [](int) {
    auto first = tensor::new_group();
    const std::weak_ptr<Backend> left = first.backend();
    nn::Linear net(2, 2);
    DistributedDataParallel model(net, {.process_group = first});
    for (int step = 0; step < 2; ++step) model(torch::ones({1, 2})).sum().backward();
    first = {};
    EXPECT_FALSE(left.expired());
    model.update_process_group(tensor::new_group());
    const Deadline deadline = Clock::steady().in(std::chrono::seconds(10));
    while (!left.expired() && !deadline.expired()) std::this_thread::yield();
    EXPECT_TRUE(left.expired());
  });
}

}  // namespace
}  // namespace lockstep
