// What becomes of gradients: where they lie, when they travel and in which buckets, and what hooks make of
// them.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/tensor/observer.h"
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

TEST(Reduction, GradientsLieInResidentBucketsHoweverTheyAreCleared) {
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

TEST(Reduction, NoSyncAccumulatesAndTheNextPassReducesAll) {
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

TEST(Reduction, NoSyncIsDecidedByForward) {
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

TEST(Reduction, SeveralForwardsOneBackwardAndTheOtherWayRound) {
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

TEST(Reduction, GradIsThisRanksOwnAndNoBackwardPass) {
  const std::vector<DataParallelOptions> options = {
      {}, {.find_unused_parameters = true}, {.static_graph = true}};
  run_world(2, [&](int rank) {
    for (const DataParallelOptions& each : options) {
      nn::Linear net(2, 1);
      DistributedDataParallel model(net, each);
      for (int step = 0; step < 3; ++step) {
        net->zero_grad();
        const at::Tensor x = torch::full({1, 2}, rank + 1.).requires_grad_();
        const at::Tensor y = model(x).sum();
        const at::Tensor own = torch::autograd::grad({y}, {net->weight}, {}, /*retain_graph=*/true)[0];
        EXPECT_TRUE(tensor::all_equal(own, rank + 1));
        // A penalty on the slope, which is a gradient itself.
        const at::Tensor slope = torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true)[0];
        (y + slope.square().sum()).backward();
        EXPECT_TRUE(at::allclose(net->weight.grad(), 1.5 + 2 * net->weight.detach())) << step;
      }
    }
  });
}

// One that a program may have written: it clips gradients where they lie, and keeps handles of its own.
class Clipping final : public torch::optim::Optimizer {
 public:
  explicit Clipping(std::vector<at::Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<torch::optim::SGDOptions>(0.5)) {}
  at::Tensor step(LossClosure) override {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : param_groups()[0].params()) {
      parameter.mutable_grad() = parameter.grad().detach();
      kept.push_back(parameter.grad());
      parameter.grad().clamp_(-1, 1);
      parameter.add_(parameter.grad(), -0.5);
    }
    return {};
  }
  std::vector<at::Tensor> kept;
};

TEST(Reduction, AnOptimizerOfOnesOwnMayChangeGradientsWhereTheyLie) {
  run_world(2, [](int rank) {
    nn::Linear net(2, 1);
    DistributedDataParallel model(net);
    Clipping optimizer(model.parameters());
    for (int step = 0; step < 4; ++step) {
      const at::Tensor before = net->weight.detach().clone();
      model((step % 2 == 0 ? 1 : 0.1) * torch::full({1, 2}, rank + 1.)).sum().backward();
      const at::Tensor mean = torch::full({1, 2}, step % 2 == 0 ? 1.5 : 0.15);
      EXPECT_TRUE(at::allclose(net->weight.grad(), mean));
      optimizer.step({});
      EXPECT_TRUE(at::allclose(net->weight, before - 0.5 * mean.clamp(-1, 1)));
      optimizer.zero_grad(/*set_to_none=*/step < 2);
    }
  });
}

TEST(Reduction, OutputsThatAreNobodysResultStayUntouched) {
  struct GivesItsScale : nn::Module {
    GivesItsScale() { scale = register_parameter("scale", torch::ones({1})); }
    std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x) { return {x * scale, scale}; }
    at::Tensor scale;
  };
  run_world(2, [](int rank) {
    DistributedDataParallel model(std::make_shared<GivesItsScale>());
    for (int step = 0; step < 3; ++step) {
      model.zero_grad();
      auto [y, scale] = model(torch::full({1}, rank + 1.));
      (y + scale).backward();
      EXPECT_TRUE(tensor::all_equal(model->scale.grad(), 2.5));
    }
    EXPECT_EQ(torch::autograd::impl::get_autograd_meta(model->scale)->cpp_hooks_list_, nullptr);
  });
}

TEST(Reduction, HooksReduceInTheGroupOfTheirModel) {
  run_world(2, [](int rank) {
    const ProcessGroup alone[] = {tensor::new_group({0}), tensor::new_group({1})};
    for (const auto& hook : {all_reduce_hook(), bf16_compress_hook(), fp16_compress_hook()}) {
      nn::Linear net(2, 1);
      DistributedDataParallel model(net, {.process_group = alone[rank]});
      model.register_comm_hook(hook);
      model(torch::full({1, 2}, rank + 1.)).sum().backward();
      EXPECT_TRUE(tensor::all_equal(net->weight.grad(), rank + 1));
    }
    nn::Linear net(2, 1);
    DistributedDataParallel model(net, {.process_group = alone[rank]});
    model.register_comm_hook(all_reduce_hook(ProcessGroup()));  // another, where one says so
    model(torch::full({1, 2}, rank + 1.)).sum().backward();
    EXPECT_TRUE(tensor::all_equal(net->weight.grad(), 1.5));
  });
}

TEST(Reduction, ComplexSparseAndEmptyGradientsTravelAlsoCompressed) {
  struct Kinds : nn::Module {
    Kinds() {
      wave = register_parameter("wave", torch::ones({3}, at::kComplexFloat));
      half = register_parameter("half", torch::ones({3}, at::kHalf));
      empty = register_parameter("empty", torch::ones({0, 2}, at::kDouble));  // alone in its bucket
      words = register_module("words", nn::Embedding(nn::EmbeddingOptions(4, 2).sparse(true)));
    }
    at::Tensor forward(int rank) {
      return at::imag(wave).sum() * (rank + 1) + at::real(wave).sum() +
             half.to(at::kFloat).sum() * (rank + 1) + empty.sum() + words(torch::tensor({rank, 2})).sum();
    }
    at::Tensor wave, half, empty;
    nn::Embedding words{nullptr};
  };
  run_world(2, [](int rank) {
    for (const auto& hook : {all_reduce_hook(), bf16_compress_hook(), fp16_compress_hook()}) {
      auto net = std::make_shared<Kinds>();
      DistributedDataParallel model(net);
      model.register_comm_hook(hook);
      for (int step = 0; step < 2; ++step) {
        net->zero_grad();
        model(rank).sum().backward();
        EXPECT_TRUE(tensor::all_equal(net->wave.grad(), c10::complex<double>(1, 1.5)));
        EXPECT_TRUE(tensor::all_equal(net->half.grad(), 1.5));
        EXPECT_EQ(net->empty.grad().sizes(), net->empty.sizes());
        const at::Tensor rows = net->words->weight.grad().to_dense().select(1, 0);
        EXPECT_TRUE(at::equal(rows, torch::tensor({0.5, 0.5, 1., 0.}, at::kFloat))) << rows;
      }
    }
  });
}

TEST(Reduction, HooksReduceAsTheySay) {
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

TEST(Reduction, BucketsAreRebuiltInTheOrderOfTheFirstPass) {
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

TEST(Reduction, BucketsThatNobodyUsesNeedNotTravel) {
  struct Either : nn::Module {
    Either() {
      register_module("left", left);
      register_module("right", right);
    }
    at::Tensor forward(const at::Tensor& x, bool use_right) {
      return use_right ? left(x) + right(x) : left(x);
    }
    nn::Linear left{nn::LinearOptions(3, 1).bias(false)};
    nn::Linear right{nn::LinearOptions(3, 1).bias(false)};
  };
  run_world(2, [](int rank) {
    auto net = std::make_shared<Either>();
    DistributedDataParallel model(
        net,
        {.find_unused_parameters = true, .skip_all_reduce_unused_params = true, .bucket_cap_mb = 0.000001});
    int reduced = 0;
    const auto watching = observe([&](const OperationEvent& event) {
      if (event.phase == OperationPhase::kPre && event.dtype == at::kFloat) ++reduced;
    });
    const auto step = [&](bool use_right) {
      reduced = 0;
      model(torch::full({1, 3}, rank + 1.), use_right).sum().backward();
      return reduced;
    };
    EXPECT_EQ(step(true), 2);
    const at::Tensor right = net->right->weight.grad().clone();
    EXPECT_TRUE(tensor::all_equal(right, 1.5));
    EXPECT_EQ(step(false), 1);
    EXPECT_TRUE(at::equal(net->right->weight.grad(), right));
    EXPECT_TRUE(tensor::all_equal(net->left->weight.grad(), 3));
  });
}

TEST(Reduction, ScriptedModulesCommunicateWhileBackwardRuns) {
  run_world(2, [](int rank) {
    torch::jit::Module script("Scripted");
    for (const char* name : {"a", "b", "c"})
      script.register_parameter(name, torch::ones({64, 64}).requires_grad_(), false);
    script.define(
        "def forward(self, x):\n  return x.matmul(self.a).tanh().matmul(self.b).tanh().matmul(self.c)\n");
    DistributedDataParallel model(script, {.bucket_cap_mb = 0.001});
    std::vector<std::pair<PassPhase, std::size_t>> events;
    model.observe([&](const PassEvent& event) { events.emplace_back(event.phase, event.index); });
    for (int step = 0; step < 3; ++step) {
      events.clear();
      model(std::vector<c10::IValue>{torch::full({2, 64}, rank + 1.)}).toTensor().sum().backward();
    }
    // c, b, a: each is on its way before the next is computed.
    using enum PassPhase;
    const auto seen = [](PassPhase phase, std::size_t index) { return std::pair(phase, index); };
    EXPECT_THAT(events, ElementsAre(seen(kForward, 0), seen(kBackward, 3), seen(kReady, 2),
                                    seen(kLaunched, 0), seen(kReady, 1), seen(kLaunched, 1), seen(kReady, 0),
                                    seen(kLaunched, 2), seen(kWaited, 0), seen(kDone, 0), seen(kWaited, 1),
                                    seen(kDone, 1), seen(kWaited, 2), seen(kDone, 2), seen(kFinished, 3)));
  });
}

TEST(Reduction, DelayedGradientsAreReducedWithTheOneThatIsNamed) {
  run_world(2, [](int rank) {
    nn::Sequential net(nn::Linear(2, 2), nn::Linear(2, 2), nn::Linear(2, 2));
    const std::vector<std::string> delayed = {"1.weight", "2.weight", "2.bias"};
    DistributedDataParallel model(net, {.delay_all_reduce_named_params = delayed,
                                        .param_to_hook_all_reduce = "0.bias",
                                        .bucket_cap_mb = 0.000001});
    nn::Sequential same(nn::Linear(2, 2), nn::Linear(2, 2), nn::Linear(2, 2));
    for (std::size_t i = 0; i < 6; ++i) same->parameters()[i].set_data(net->parameters()[i].detach().clone());
    DistributedDataParallel plain(same);
    std::vector<std::size_t> launched;
    model.observe([&](const PassEvent& event) {
      if (event.phase == PassPhase::kLaunched) launched.push_back(event.index);
    });
    for (int step = 0; step < 3; ++step) {
      launched.clear();
      const at::Tensor x = torch::full({1, 2}, rank + step + 1.);
      model(x).square().sum().backward();
      plain(x).square().sum().backward();
      for (std::size_t i = 0; i < 6; ++i)
        EXPECT_TRUE(at::equal(net->parameters()[i].grad(), same->parameters()[i].grad())) << i;
    }
    ASSERT_THAT(launched, ElementsAre(0, 1, 2, 3, 4, 5));
    const auto& buckets = model.core().gradients().plan().buckets;
    for (std::size_t b = 3; b < 6; ++b) EXPECT_THAT(buckets[b], ElementsAre(::testing::AnyOf(2, 4, 5)));
    // All of them, with one that is delayed itself: the one that comes last.
    const auto last = static_cast<std::size_t>(model.core().gradients().plan().buckets[2].front());
    DistributedDataParallel all(net, {.delay_all_reduce_named_params = {"0.weight", "0.bias", "1.weight",
                                                                        "1.bias", "2.weight", "2.bias"},
                                      .param_to_hook_all_reduce = last == 0 ? "0.weight" : "0.bias"});
    for (int step = 0; step < 3; ++step) {
      const at::Tensor x = torch::full({1, 2}, rank + step + 1.);
      all(x).square().sum().backward();
      plain(x).square().sum().backward();
      for (std::size_t i = 0; i < 6; ++i)
        EXPECT_TRUE(at::equal(net->parameters()[i].grad(), same->parameters()[i].grad())) << i;
    }
  });
}

TEST(Reduction, ReadsAndWritesAGradientSlotOfOnesOwn) {
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
