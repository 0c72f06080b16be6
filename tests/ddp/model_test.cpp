// What a wrapped model is to its user: names, state, kinds of modules, buffers, what it says of itself.
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <sstream>

#include "lockstep/ddp/distributed_data_parallel.h"
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
    if (rank == 1) model(torch::randn({4, 3}));
    model.train();
    tensor::barrier();
    model(torch::randn({4, 3})).sum().backward();
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

}  // namespace
}  // namespace lockstep
