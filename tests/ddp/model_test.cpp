// What a wrapped model is to its user: names, state, kinds of modules, buffers, what it says of itself.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <optional>
#include <sstream>

#include "lockstep/base/log.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/tensor/observer.h"
#include "lockstep/tensor/tensor_test_support.h"

namespace lockstep {
namespace {

namespace nn = torch::nn;
using tensor::run_world;
using ::testing::ElementsAre;

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

TEST(Model, SavedStateHasNoPrefix) {
  run_world(2, [](int rank) {
    nn::Sequential plain(nn::Linear(3, 4), nn::BatchNorm1d(4));
    nn::Sequential wrapped(nn::Linear(3, 4), nn::BatchNorm1d(4));
    DistributedDataParallel model(wrapped);
    std::stringstream bytes;
    torch::save(std::shared_ptr<nn::Module>(std::shared_ptr<nn::Module>(), &model), bytes);
    torch::load(plain, bytes);
    EXPECT_TRUE(at::equal(plain[0]->as<nn::Linear>()->weight, wrapped[0]->as<nn::Linear>()->weight));
    {
      const torch::NoGradGuard no_grad;
      plain[0]->as<nn::Linear>()->weight.fill_(rank + 1);
    }
    std::stringstream back;
    torch::save(plain, back);
    torch::serialize::InputArchive archive;
    archive.load_from(back);
    model.load(archive);
    EXPECT_TRUE(tensor::all_equal(wrapped[0]->as<nn::Linear>()->weight, rank + 1));
  });
}

TEST(Model, StartsWithTheValuesOfRankZero) {
  run_world(3, [](int rank) {
    torch::manual_seed(rank);
    nn::Sequential net(nn::Linear(3, 4), nn::BatchNorm1d(4));
    net[1]->as<nn::BatchNorm1d>()->running_mean.fill_(rank);
    DistributedDataParallel model(net);
    torch::manual_seed(0);
    const nn::Linear same(3, 4);
    EXPECT_TRUE(at::equal(net[0]->as<nn::Linear>()->weight, same->weight));
    EXPECT_TRUE(tensor::all_equal(net[1]->as<nn::BatchNorm1d>()->running_mean, 0));
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

    torch::jit::Module script("Scripted");
    script.register_parameter("weight", torch::ones({3, 2}).requires_grad_(), false);
    script.define("def forward(self, x):\n  return (x.matmul(self.weight), x)\n");
    DistributedDataParallel from_jit(script);
    EXPECT_THAT(names(from_jit), ElementsAre("weight"));
    from_jit(std::vector<c10::IValue>{x}).toTuple()->elements()[0].toTensor().sum().backward();
    EXPECT_TRUE(tensor::all_equal(from_jit.parameters()[0].grad(), 2 * 1.5));

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

TEST(Model, BuffersAreThoseOfRankZeroBeforeForward) {
  run_world(2, [](int rank) {
    nn::BatchNorm1d net(2);
    DistributedDataParallel model(net);
    net->running_mean.fill_(rank + 5);
    const auto version = net->running_var._version();
    net->train(false);
    model.train();
    net->options.momentum(0);
    model(torch::randn({4, 2}));
    EXPECT_TRUE(tensor::all_equal(net->running_mean, 5));
    EXPECT_LE(net->running_var._version(), version + 1);  // by the module's own update

    nn::BatchNorm1d own(2);
    DistributedDataParallel apart(own, {.forward_sync_buffers = false});
    own->options.momentum(0);
    own->running_mean.fill_(rank + 5);
    apart(torch::randn({4, 2})).sum().backward();
    EXPECT_TRUE(tensor::all_equal(own->running_mean, rank + 5));

    std::vector<std::string> seen;
    nn::BatchNorm1d hooked(2);
    DistributedDataParallel with_hook(hooked);
    with_hook.register_buffer_comm_hook(
        [&](const ddp::NamedTensors& buffers) {
          for (const auto& [name, buffer] : buffers) seen.push_back(name);
        },
        BufferHookLocation::kPostForward);
    with_hook(torch::randn({4, 2}));
    EXPECT_THAT(seen, ElementsAre("running_mean", "running_var", "num_batches_tracked"));
    with_hook.register_buffer_comm_hook([&](const ddp::NamedTensors&) { hooked->running_mean.fill_(7); },
                                        BufferHookLocation::kPreForward);
    hooked->options.momentum(0);
    with_hook(torch::randn({4, 2}));
    EXPECT_TRUE(tensor::all_equal(hooked->running_mean, 7));
  });
}

// A layer, and a buffer that is the rank's number when it is made.
struct NumberedImpl : nn::Module {
  explicit NumberedImpl(int rank) : layer(register_module("layer", nn::Linear(2, 2))) {
    number = register_buffer("number", torch::full({2}, rank));
  }
  at::Tensor forward(const at::Tensor& x) { return layer(x); }
  nn::Linear layer;
  at::Tensor number;
};
TORCH_MODULE(Numbered);

TEST(Model, OptionsSayWhichBuffersAreRankZeros) {
  struct Case {
    DataParallelOptions options;
    bool at_construction;
    bool before_forward;
  };
  const std::vector<Case> cases = {
      {{}, true, true},
      {{.forward_sync_buffers = false}, true, false},
      {{.broadcast_buffers = false}, false, false},
      {{.forward_sync_buffers = true, .broadcast_buffers = false}, true, true},
      {{.init_sync = false}, false, true},
      {{.parameters_and_buffers_to_ignore = {"number"}}, false, false},
  };
  run_world(2, [&](int rank) {
    for (const Case& each : cases) {
      torch::manual_seed(rank);
      Numbered net(rank);
      const at::Tensor weight = net->layer->weight.detach().clone();
      DistributedDataParallel model(net, each.options);
      EXPECT_TRUE(tensor::all_equal(net->number, each.at_construction ? 0 : rank));
      EXPECT_EQ(at::equal(net->layer->weight, weight), rank == 0 || !each.options.init_sync);
      net->number.fill_(rank + 5);
      const auto version = net->number._version();
      model(torch::ones({1, 2})).sum().backward();
      EXPECT_TRUE(tensor::all_equal(net->number, each.before_forward ? 5 : rank + 5));
      EXPECT_EQ(net->number._version(), version);
      // Another tensor in its place, and one that is new.
      net->number.set_data(torch::full({3}, rank + 9));
      const at::Tensor later = net->register_buffer("later", torch::full({2}, rank + 7));
      model(torch::ones({1, 2})).sum().backward();
      const bool is_ignored = !each.options.parameters_and_buffers_to_ignore.empty();
      EXPECT_TRUE(tensor::all_equal(net->number, each.before_forward ? 9 : rank + 9));
      EXPECT_TRUE(tensor::all_equal(later, each.before_forward || is_ignored ? 7 : rank + 7));
    }
  });
}

TEST(Model, IgnoredAndFrozenParametersStayAsTheyAre) {
  run_world(2, [](int rank) {
    nn::Sequential net(nn::Linear(2, 2), nn::Linear(2, 2));
    net[0]->as<nn::Linear>()->bias.requires_grad_(false);
    {
      const torch::NoGradGuard no_grad;
      net[1]->as<nn::Linear>()->weight.fill_(rank);
    }
    DistributedDataParallel model(net, {.parameters_and_buffers_to_ignore = {"1.weight"}});
    EXPECT_TRUE(tensor::all_equal(net[1]->as<nn::Linear>()->weight, rank));
    model(torch::full({1, 2}, 1.)).sum().backward();
    model(torch::full({1, 2}, 1.)).sum().backward();
    EXPECT_FALSE(net[0]->as<nn::Linear>()->bias.grad().defined());
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
                                         "buckets of 2097152, 2097152 bytes, static_graph; .*master_port="));
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
  });
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

}  // namespace
}  // namespace lockstep
