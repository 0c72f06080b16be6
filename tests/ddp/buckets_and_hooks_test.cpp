// In which buckets gradients travel and when, and what hooks make of them.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/ddp/activation_checkpoint.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/segment_plan.h"
#include "lockstep/tensor/observer.h"
#include "lockstep/tensor/resident.h"
#include "lockstep/tensor/rounds.h"
#include "lockstep/tensor/tensor_test_support.h"

namespace lockstep {
namespace {

namespace nn = torch::nn;
using tensor::run_world;
using ::testing::ElementsAre;

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
                                      return HookWork{work, [other] { other.mul_(2); }};
                                    });
                                  }),
                                  60));
  });
}

TEST(Reduction, AHookMayGiveTheBucketsOwnMemoryConjugated) {
  run_world(2, [](int rank) {
    struct Complex : nn::Module {
      Complex() { weight = register_parameter("weight", torch::ones({3}, at::kComplexFloat)); }
      at::Tensor forward(const at::Tensor& x) { return (weight * x).sum().abs(); }
      at::Tensor weight;
    };
    const auto gradient = [&](bool conjugated) {
      auto net = std::make_shared<Complex>();
      DistributedDataParallel model(net);
      if (conjugated) {
        model.register_comm_hook([](GradBucket& bucket) {
          bucket.set_buffer(bucket.buffer().conj());
          return HookWork{};
        });
      } else {
        model.register_comm_hook(noop_hook());
      }
      model(at::complex(torch::ones({3}), torch::arange(3.) + rank)).backward();
      return net->weight.grad().clone();
    };
    const at::Tensor plain = gradient(false);
    EXPECT_FALSE(at::equal(plain, plain.conj()));
    EXPECT_TRUE(at::equal(gradient(true), plain.conj()));
  });
}

TEST(Reduction, StridesThatOneRankHasChangedLeaveItsGradientsInTheirPlaces) {
  run_world(2, [](int rank) {
    nn::Conv2d net(nn::Conv2dOptions(2, 3, 2));
    DistributedDataParallel model(net);
    const auto mean = [&](const at::Tensor& x) {
      at::Tensor own = torch::autograd::grad({net(x).square().sum()}, {net->weight})[0].contiguous();
      tensor::all_reduce(own, {.op = ReduceOp::kAvg});
      return own;
    };
    for (int step = 0; step < 4; ++step) {  // the buckets of the second are others
      if (rank == 1 && step == 1)
        net->weight.set_data(net->weight.contiguous(at::MemoryFormat::ChannelsLast));
      const at::Tensor x = torch::arange(2 * 9.).view({1, 2, 3, 3}) * (rank + 1 + step);
      net->zero_grad();
      model(x).square().sum().backward();
      EXPECT_TRUE(at::allclose(net->weight.grad(), mean(x))) << step;
    }
  });
}

TEST(Reduction, ASegmentIsABucket) {
  struct Tied : nn::Module {
    Tied() {
      stages->push_back(tied);  // with which backward ends
      for (int i = 0; i < 2; ++i) {
        stages->push_back(nn::Linear(4, 4));
        stages->push_back(nn::Tanh());
      }
      stages->push_back(tied);
      stages->push_back(nn::Linear(4, 4));
      register_module("stages", stages);
      segments = plan_segments(stages, {.bucket_cap_mb = 60. / (1 << 20)});
    }
    at::Tensor forward(at::Tensor x) {
      for (const Segment& segment : segments) {
        const auto run = [this, segment](at::Tensor y) {
          for (std::size_t i = segment.begin; i < segment.end; ++i) {
            auto* const layer = stages[i]->as<nn::Linear>();
            y = layer != nullptr ? layer->forward(y) : y.tanh();
          }
          return y;
        };
        x = checkpoint(run, x);
      }
      return x;
    }
    nn::Linear tied{4, 4};
    nn::ModuleList stages;
    std::vector<Segment> segments;
  };
  run_world(2, [](int rank) {
    auto net = std::make_shared<Tied>();
    EXPECT_EQ(net->segments, (std::vector<Segment>{{0, 1, 80}, {1, 3, 80}, {3, 6, 80}, {6, 7, 80}}));
    DistributedDataParallel model(net, {.bucket_cap_mb_list = bucket_cap_mb_list(net->segments)});
    for (int step = 0; step < 2; ++step) model(torch::ones({1, 4}) * rank).sum().backward();
    const auto plan = model.logging_data().texts;
    EXPECT_EQ(plan.at("rebuilt_bucket_sizes"), "80, 80, 80, 80");
    EXPECT_EQ(plan.at("rebuilt_per_bucket_param_indices"), "7 6, 5 4, 3 2, 1 0");
  });
}

TEST(Reduction, AHookOfSeveralRoundsIsOneOperationInPlanOrder) {
  run_world(3, [](int rank) {
    nn::Sequential net(nn::Linear(4, 4), nn::Linear(4, 4), nn::Linear(4, 4));
    DistributedDataParallel model(net, {.bucket_cap_mb = 0.00007});
    std::vector<std::uint64_t> numbers;
    model.register_comm_hook([&](GradBucket& bucket) {
      const at::Tensor buffer = bucket.buffer();
      const at::Tensor largest = buffer.abs().max().reshape({1});
      const auto scaled = [=] { return buffer.div_(largest); };  // by what the first round has brought
      const auto mean = [=] { buffer.mul_(largest / 3); };
      const auto work = tensor::all_reduce_rounds(largest, {scaled}, mean, {.async_op = true});
      numbers.push_back(work.sequence());
      return HookWork{work};
    });
    nn::Sequential twin(nn::Linear(4, 4), nn::Linear(4, 4), nn::Linear(4, 4));
    for (std::size_t i = 0; i < twin->parameters().size(); ++i)
      twin->parameters()[i].set_data(net->parameters()[i].detach().clone());
    DistributedDataParallel plain(twin, {.process_group = tensor::new_group({0, 1, 2})});
    for (int step = 0; step < 3; ++step) {
      numbers.clear();
      const at::Tensor x = torch::full({1, 4}, rank + step + 1.);
      net->zero_grad();
      twin->zero_grad();
      model(x).sum().backward();
      plain(x).sum().backward();
      for (std::size_t i = 0; i < twin->parameters().size(); ++i)
        EXPECT_TRUE(at::allclose(net->parameters()[i].grad(), twin->parameters()[i].grad())) << i;
    }
    ASSERT_EQ(numbers.size(), 3U);
    EXPECT_EQ(numbers[1], numbers[0] + 2);  // the second round of a bucket comes before the first of the next
    EXPECT_EQ(numbers[2], numbers[1] + 2);
  });
}

TEST(Reduction, BucketsForWhichTheHeapHasNoRoomArePlainMemory) {
  EXPECT_OK(testing::ProcessWorld(2, std::chrono::minutes(3)).run([](const SpawnedRank& rank) {
    const auto world =
        init_process_group({.world = {.heap_capacity = Bytes::mib(16)}, .environment = rank.environment});
    nn::Sequential net(nn::Linear(2048, 2048), nn::Linear(2048, 1));
    ::testing::internal::CaptureStderr();
    DistributedDataParallel model(net, {.bucket_cap_mb_list = {0.001, 25}});
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                ::testing::HasSubstr("A gradient bucket of 16.0 MiB is plain memory, which is slower: "));
    for (int step = 0; step < 3; ++step) {
      net->zero_grad(step != 1);
      model(torch::full({1, 2048}, rank.rank.value + 1.)).sum().backward();
    }
    const at::Tensor gradient = net->parameters()[0].grad();
    EXPECT_FALSE(is_resident(gradient));
    EXPECT_TRUE(is_resident(net->parameters()[2].grad()));
    EXPECT_TRUE(at::allclose(gradient, 1.5 * net->parameters()[2].t().expand({2048, 2048})));
  }));
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

    // Also where normalisations are frozen, and all of the training is in eval mode.
    DistributedDataParallel frozen(std::make_shared<Crossed>(), {.bucket_cap_mb = 0.00001});
    frozen.train(false);
    frozen(torch::randn({2, 4})).sum().backward();
    EXPECT_FALSE(frozen.core().has_rebuilt_buckets());
    frozen(torch::randn({2, 4})).sum().backward();
    EXPECT_TRUE(frozen.core().has_rebuilt_buckets());
  });
}

struct Either : nn::Module {
  Either() {
    register_module("left", left);
    register_module("right", right);
  }
  at::Tensor forward(const at::Tensor& x, bool use_right, bool use_left = true) {
    if (!use_left) return right(x);
    return use_right ? left(x) + right(x) : left(x);
  }
  nn::Linear left{nn::LinearOptions(3, 1).bias(false)};
  nn::Linear right{nn::LinearOptions(3, 1).bias(false)};
};

const DataParallelOptions kSkipping = {
    .find_unused_parameters = true, .skip_all_reduce_unused_params = true, .bucket_cap_mb = 0.000001};

TEST(Reduction, BucketsThatNobodyUsesNeedNotTravel) {
  run_world(2, [](int rank) {
    auto net = std::make_shared<Either>();
    DistributedDataParallel model(net, kSkipping);
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
    // What was used once since the last reduction counts as used.
    net->zero_grad();
    {
      const auto guard = model.no_sync();
      step(true);
    }
    EXPECT_EQ(step(false), 2);
    EXPECT_TRUE(tensor::all_equal(net->right->weight.grad(), 1.5));
    EXPECT_TRUE(tensor::all_equal(net->left->weight.grad(), 3));
    EXPECT_EQ(step(false), 1);
  });
}

TEST(Reduction, BucketsThatOneRankLeavesOutAreNotThoseOfAnother) {
  for (const bool is_static : {false, true}) {
    run_world(2, [&](int rank) {
      DataParallelOptions options = kSkipping;
      options.static_graph = is_static;
      options.find_unused_parameters = !is_static;
      DistributedDataParallel model(std::make_shared<Either>(), options);
      const auto step = [&] { model(torch::ones({1, 3}), rank == 1, rank == 0).sum().backward(); };
      if (is_static) step();  // which leaves nothing out
      tensor::barrier();
      tensor::expect_error<DistBackendError>(step, {"skip_all_reduce_unused_params", "used by another rank"});
    });
  }
}

TEST(Reduction, ScriptedModulesCommunicateWhileBackwardRuns) {
  run_world(2, [](int rank) {
    torch::jit::Module script("Scripted");
    for (const char* name : {"a", "b", "c"})
      script.register_parameter(name, torch::ones({64, 64}).requires_grad_(), false);
    script.define(
        "def forward(self, x):\n  return x.matmul(self.a).tanh().matmul(self.b).tanh().matmul(self.c)\n");
    DistributedDataParallel model(script, {.bucket_cap_mb = 0.001});
    std::vector<WorkHandle> works;
    model.register_comm_hook([&](GradBucket& bucket) {
      works.push_back(tensor::all_reduce(bucket.buffer(), {.op = ReduceOp::kAvg, .async_op = true}));
      return HookWork{works.back()};
    });
    std::vector<std::pair<PassPhase, std::size_t>> events;
    bool ended = false;  // that of the first bucket, before the last gradient is computed
    model.observe([&](const PassEvent& event) {
      events.emplace_back(event.phase, event.index);
      if (event.phase != PassPhase::kReady || event.index != 1 || works.empty()) return;
      // Looked at and not waited for: who waits may run the operation.
      const auto until = Clock::steady().now() + std::chrono::seconds(20);
      while (!ended && Clock::steady().now() < until) ended = works.front().is_completed();
    });
    for (int step = 0; step < 3; ++step) {
      events.clear();
      works.clear();
      ended = false;
      model(std::vector<c10::IValue>{torch::full({2, 64}, rank + 1.)}).toTensor().sum().backward();
    }
    // c, b, a: each is on its way before the next is computed.
    using enum PassPhase;
    const auto seen = [](PassPhase phase, std::size_t index) { return std::pair(phase, index); };
    EXPECT_THAT(events, ElementsAre(seen(kForward, 0), seen(kBackward, 3), seen(kReady, 2),
                                    seen(kLaunched, 0), seen(kReady, 1), seen(kLaunched, 1), seen(kReady, 0),
                                    seen(kLaunched, 2), seen(kWaited, 0), seen(kDone, 0), seen(kWaited, 1),
                                    seen(kDone, 1), seen(kWaited, 2), seen(kDone, 2), seen(kFinished, 3)));
    EXPECT_TRUE(ended);
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

}  // namespace
}  // namespace lockstep
