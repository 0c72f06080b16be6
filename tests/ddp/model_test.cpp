// What a user does with a wrapped model: its names and its state, clearing gradients, accumulating them,
// hooks.
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <sstream>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/tensor/resident.h"
#include "lockstep/tensor/tensor_test_support.h"
#include "one_process.h"

namespace lockstep {
namespace {

namespace nn = torch::nn;
using tensor::run_world;
using testing::descend;
using testing::difference;
using ::testing::ElementsAre;
using testing::make_net;
using testing::Net;
using testing::OneProcess;

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

TEST(Model, GradientsLieInResidentBucketsHoweverTheyAreCleared) {
  run_world(2, [](int rank) {
    torch::manual_seed(1);
    nn::Sequential net(nn::Linear(3, 4), nn::Linear(4, 2));
    DistributedDataParallel model(net);
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    const auto step = [&] {
      model(torch::full({2, 3}, rank + 1.)).sum().backward();
      for (const at::Tensor& parameter : net->parameters()) EXPECT_TRUE(is_resident(parameter.grad()));
      return net[1]->as<nn::Linear>()->weight.grad().clone();
    };
    const at::Tensor first = step();
    optimizer.zero_grad();
    EXPECT_FALSE(net->parameters()[0].grad().defined());
    EXPECT_TRUE(at::equal(step(), first));
    optimizer.zero_grad(false);
    EXPECT_TRUE(at::equal(step(), first));
    model.zero_grad();
    EXPECT_TRUE(at::equal(step(), first));
    net->zero_grad(false);
    const void* const place = net->parameters()[0].grad().const_data_ptr();
    EXPECT_TRUE(at::equal(step(), first));
    EXPECT_EQ(net->parameters()[0].grad().const_data_ptr(), place);
    // Not cleared: what the next pass adds is averaged, what was there stays.
    EXPECT_TRUE(at::allclose(step(), 2 * first));
    optimizer.step();
    // A gradient that the program has replaced is taken from where it is.
    net->parameters()[0].mutable_grad() = torch::zeros({4, 3});
    step();
  });
}

TEST(Model, NoSyncAccumulatesAndTheNextPassReducesAll) {
  for (const int size : {2, 3}) {
    run_world(size, [&](int rank) {
      torch::set_num_threads(1);
      const std::shared_ptr<Net> net = make_net("branches");
      DistributedDataParallel model(net, {.find_unused_parameters = true});
      OneProcess reference("branches", size);
      for (int step = 0; step < 6; ++step) {
        net->zero_grad();
        reference.net().zero_grad();
        {
          const auto guard = model.no_sync();
          model(net->batch(rank, 3 * step)).backward();
          model(net->batch(rank, 3 * step + 1)).backward();
        }
        model(net->batch(rank, 3 * step + 2)).backward();
        reference.backward(step, 3);
        ASSERT_EQ(difference(*net, reference.net()), "") << "rank " << rank << " of " << size;
        descend(*net, 0.05);
        descend(reference.net(), 0.05);
      }
    });
  }
}

TEST(Model, NoSyncIsDecidedByForward) {
  run_world(2, [](int rank) {
    nn::Linear net(2, 1);
    DistributedDataParallel model(net);
    const at::Tensor x = torch::full({1, 2}, rank + 1.);
    at::Tensor inside;
    {
      const auto guard = model.no_sync();
      inside = model(x);
    }
    inside.sum().backward();
    EXPECT_TRUE(tensor::all_equal(net->weight.grad(), rank + 1));
    net->zero_grad();
    const at::Tensor outside = model(x);
    {
      const auto guard = model.no_sync();
      outside.sum().backward();
    }
    EXPECT_TRUE(tensor::all_equal(net->weight.grad(), 1.5));
  });
}

TEST(Model, SeveralForwardsOneBackwardAndTheOtherWayRound) {
  run_world(2, [](int rank) {
    nn::Linear net(2, 1);
    DistributedDataParallel model(net);
    const at::Tensor x = torch::full({1, 2}, rank + 1.);
    (model(x).sum() + model(2 * x).sum()).backward();
    EXPECT_TRUE(tensor::all_equal(net->weight.grad(), 3 * 1.5));
    net->zero_grad();
    const at::Tensor loss = model(x).sum();
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_TRUE(tensor::all_equal(net->weight.grad(), 1.5));
    loss.backward();  // the pass is over: this one is the rank's own, as in torch
    EXPECT_TRUE(tensor::all_equal(net->weight.grad(), 1.5 + rank + 1));
    net->zero_grad();
    // With a graph of the gradient.
    model(x).square().sum().backward({}, /*retain_graph=*/true, /*create_graph=*/true);
    EXPECT_TRUE(net->weight.grad().requires_grad());
    const at::Tensor all = torch::empty({2, 1, 2});
    tensor::all_gather_single(all, net->weight.grad().detach());
    EXPECT_TRUE(at::equal(all[0], all[1]));
    net->weight.mutable_grad().reset();
    net->bias.mutable_grad().reset();
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

TEST(Model, HooksReduceAsTheySay) {
  run_world(2, [](int rank) {
    const at::Tensor x = torch::full({1, 2}, rank + 1.);
    const auto gradient = [&](const auto& set_up) {
      nn::Linear net(2, 1);
      DistributedDataParallel model(net);
      set_up(model);
      for (int step = 0; step < 3; ++step) {
        net->zero_grad();
        model(x).sum().backward();
      }
      return net->weight.grad();
    };
    EXPECT_TRUE(
        tensor::all_equal(gradient([](auto& model) { model.register_comm_hook(noop_hook()); }), rank + 1));
    EXPECT_TRUE(tensor::all_equal(
        gradient([](auto& model) { model.register_comm_hook(fp16_compress_hook()); }), 1.5));
    EXPECT_TRUE(tensor::all_equal(
        gradient([](auto& model) { model.register_comm_hook(bf16_compress_hook()); }), 1.5));
    EXPECT_TRUE(tensor::all_equal(gradient([](auto& model) {
                                    model.register_comm_hook([](GradBucket& bucket) {
                                      EXPECT_TRUE(bucket.is_last() && bucket.index() == 0);
                                      EXPECT_EQ(bucket.gradients().size(), bucket.parameters().size());
                                      const at::Tensor other = bucket.buffer() * 10;
                                      bucket.set_buffer(other);
                                      auto work = tensor::all_reduce(other, {.async_op = true});
                                      // A second round, after the first.
                                      return HookWork{work, [other] { tensor::all_reduce(other); }};
                                    });
                                  }),
                                  60));
  });
}

TEST(Model, BucketsAreRebuiltInTheOrderOfTheFirstPass) {
  run_world(2, [](int) {
    struct Crossed : nn::Module {
      Crossed() {
        register_module("a", a);
        register_module("b", b);
      }
      at::Tensor forward(const at::Tensor& x) { return a(b(x)); }
      nn::Linear a{4, 4};
      nn::Linear b{4, 4};
    };
    auto net = std::make_shared<Crossed>();
    DistributedDataParallel model(net, {.bucket_cap_mb = 0.00001});
    std::vector<std::size_t> launched;
    std::vector<std::size_t> ready;
    model.observe([&](const PassEvent& event) {
      if (event.phase == PassPhase::kLaunched) launched.push_back(event.index);
      if (event.phase == PassPhase::kReady) ready.push_back(event.index);
    });
    model(torch::randn({2, 4})).sum().backward();
    EXPECT_THAT(launched, ElementsAre(0));  // one bucket, until the order is known
    const auto order = ready;
    launched.clear();
    ready.clear();
    model(torch::randn({2, 4})).sum().backward();
    EXPECT_THAT(launched, ElementsAre(0, 1, 2, 3));
    EXPECT_EQ(ready, order);
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
    tensor::expect_error([&] { model.set_runtime_logging_sample_rate(0); }, {"rate is 0"});
  });
}

TEST(Model, SharedByAGradientSlotOfOnesOwn) {
  // Gradients are kept in a table instead of in `.grad`.
  struct Table {
    std::map<const void*, at::Tensor> gradients;
  };
  struct Slot final : GradientSlot {
    Slot(const at::Tensor& parameter, Table& to) : own(tensor::own_gradient(parameter)), table(to) {}
    at::Tensor local() const override { return own->local(); }
    at::Tensor gradient() const override {
      const auto found = table.gradients.find(key());
      return found == table.gradients.end() ? at::Tensor() : found->second;
    }
    void set_gradient(const at::Tensor& gradient) override { table.gradients[key()] = gradient.clone(); }
    bool may_alias() const override { return false; }
    const torch::autograd::Node* accumulator() const override { return own->accumulator(); }
    void when_accumulated(std::function<void()> then) override {
      own->when_accumulated([this, then = std::move(then)] {
        table.gradients[key()] = own->gradient().clone();
        own->set_gradient({});
        then();
      });
    }
    const void* key() const { return own->local().unsafeGetTensorImpl(); }
    std::unique_ptr<GradientSlot> own;
    Table& table;
  };
  run_world(2, [](int rank) {
    Table table;
    nn::Linear net(2, 1);
    DistributedDataParallel model(net, {.gradient_slot = [&](const at::Tensor& parameter) {
                                    return std::make_unique<Slot>(parameter, table);
                                  }});
    model(torch::full({1, 2}, rank + 1.)).sum().backward();
    EXPECT_FALSE(net->weight.grad().defined());
    EXPECT_TRUE(tensor::all_equal(table.gradients.at(net->weight.unsafeGetTensorImpl()), 1.5));
  });
}

}  // namespace
}  // namespace lockstep
