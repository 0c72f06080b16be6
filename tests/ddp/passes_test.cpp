// Several models, forwards and backward passes at a time: each gradient is the mean of all ranks.
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <functional>
#include <utility>

#include "lockstep/ddp/activation_checkpoint.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/tensor/tensor_test_support.h"

namespace lockstep {
namespace {

namespace nn = torch::nn;
using tensor::run_world;

// Large enough that a bucket is still reduced while the next hook of the same gradient runs.
constexpr int kWide = 512;

// A layer of its own, and one that others may have too.
struct Sharing : nn::Module {
  explicit Sharing(const nn::Linear& given) : shared(register_module("shared", given)) {
    register_module("own", own);
  }
  at::Tensor forward(const at::Tensor& x) { return shared(own(x)); }
  nn::Linear shared;
  nn::Linear own{kWide, kWide};
};

at::Tensor mean_over_ranks(const at::Tensor& own) {
  at::Tensor mean = own.clone();
  tensor::all_reduce(mean, {.op = ReduceOp::kAvg});
  return mean;
}

TEST(Passes, AParameterOfTwoModelsIsTheMeanInBoth) {
  for (const bool alias : {true, false}) {
    run_world(2, [&](int rank) {
      torch::set_num_threads(1);
      torch::manual_seed(1);
      const DataParallelOptions options{.gradient_as_bucket_view = alias, .bucket_cap_mb = 0.1};
      nn::Linear shared(kWide, kWide);
      auto left = std::make_shared<Sharing>(shared);
      auto right = std::make_shared<Sharing>(shared);
      const at::Tensor x = torch::full({1, kWide}, rank + 1.);
      DistributedDataParallel first(left, options);
      first(x).sum().backward();  // alone: the gradient is its bucket's memory, and stays there
      DistributedDataParallel second(right, options);
      for (int step = 0; step < 12; ++step) {
        for (nn::Module* const net : std::initializer_list<nn::Module*>{left.get(), right.get()})
          net->zero_grad(/*set_to_none=*/step % 3 != 0);
        const std::vector<at::Tensor> watched = {shared->weight, left->own->weight, right->own->weight};
        const std::vector<at::Tensor> own =
            torch::autograd::grad({right->forward(left->forward(x)).sum()}, watched);
        second(first(x)).sum().backward();
        for (std::size_t i = 0; i < watched.size(); ++i)
          ASSERT_TRUE(at::equal(watched[i].grad(), mean_over_ranks(own[i]))) << step << ' ' << i;
      }
    });
  }
}

TEST(Passes, TwoModelsOfOneModuleGiveItsMean) {
  struct Table : nn::Module {
    Table() {
      register_module("words", words);
      register_module("layer", layer);
    }
    at::Tensor forward(const at::Tensor& i) { return layer(words(i)); }
    nn::Embedding words{nn::EmbeddingOptions(8, kWide).sparse(true)};
    nn::Linear layer{kWide, kWide};
  };
  run_world(2, [](int rank) {
    torch::set_num_threads(1);
    auto net = std::make_shared<Table>();
    DistributedDataParallel first(net);
    DistributedDataParallel second(net);
    const at::Tensor words = torch::arange(3) + rank;
    for (int step = 0; step < 12; ++step) {
      net->zero_grad(/*set_to_none=*/step % 3 != 0);
      net->words->weight.mutable_grad().reset();
      const std::vector<at::Tensor> watched = {net->words->weight, net->layer->weight};
      const std::vector<at::Tensor> own = torch::autograd::grad({2 * net->forward(words).sum()}, watched);
      (first(words).sum() + second(words).sum()).backward();
      for (std::size_t i = 0; i < watched.size(); ++i)
        ASSERT_TRUE(at::allclose(watched[i].grad().to_dense(), mean_over_ranks(own[i].to_dense()))) << step;
    }
  });
}

TEST(Passes, AStaticGraphMayUseParametersOutsideForward) {
  struct Scaled : nn::Module {
    Scaled() {
      register_module("layer", layer);
      scale = register_parameter("scale", torch::ones({2}));
      unused = register_parameter("unused", torch::ones({2}));
    }
    at::Tensor forward(const at::Tensor& x) { return layer(x); }
    nn::Linear layer{2, 2};
    at::Tensor scale;
    at::Tensor unused;
  };
  for (const int size : {2, 3}) {
    run_world(size, [&](int rank) {
      for (const double cap : {1e-6, 25.}) {
        auto net = std::make_shared<Scaled>();
        DistributedDataParallel model(net, {.static_graph = true, .bucket_cap_mb = cap});
        for (int step = 0; step < 4; ++step) {
          net->zero_grad(/*set_to_none=*/step % 2 == 0);
          const at::Tensor x = torch::full({1, 2}, rank + 1. + step);
          const auto loss = [&](const at::Tensor& output) {  // one parameter in forward too, the other not
            return (output * net->scale).sum() + x.sum() * net->layer->weight.square().sum();
          };
          const std::vector<at::Tensor> used = {net->layer->weight, net->layer->bias, net->scale};
          const std::vector<at::Tensor> own = torch::autograd::grad({loss(net->forward(x))}, used);
          loss(model(x)).backward();
          for (std::size_t i = 0; i < used.size(); ++i)
            ASSERT_TRUE(at::allclose(used[i].grad(), mean_over_ranks(own[i]))) << step << ' ' << i;
          ASSERT_FALSE(net->unused.grad().defined());
        }
      }
    });
  }
}

TEST(Passes, AParameterThatTheLossAloneUsesIsOfEveryPass) {
  struct Scaled : nn::Module {
    Scaled() {
      register_module("layer", layer);
      scale = register_parameter("scale", torch::ones({1}));
    }
    at::Tensor forward(const at::Tensor& x) { return layer(x); }
    nn::Linear layer{2, 2};
    at::Tensor scale;
  };
  for (const DataParallelOptions& each : {DataParallelOptions{}, DataParallelOptions{.static_graph = true},
                                          DataParallelOptions{.gradient_as_bucket_view = false}}) {
    run_world(2, [&](int rank) {
      auto net = std::make_shared<Scaled>();
      DistributedDataParallel model(net, each);
      const at::Tensor x = torch::full({1, 2}, rank + 1.);
      const auto loss = [&](const at::Tensor& output) {
        return (output * net->scale).sum() + net->scale.sum();
      };
      const auto parameters = net->parameters();
      const auto expect_mean = [&](const at::Tensor& whole) {
        const std::vector<at::Tensor> own = torch::autograd::grad({whole}, parameters);
        for (std::size_t i = 0; i < parameters.size(); ++i)
          ASSERT_TRUE(at::allclose(parameters[i].grad(), mean_over_ranks(own[i]))) << i;
        net->zero_grad();
      };
      for (int step = 0; step < 3; ++step) {
        const at::Tensor one = model(x);
        const at::Tensor other = model(2 * x);
        loss(one).backward();
        loss(other).backward();  // its gradient of `scale` is there before backward comes to `other`
        expect_mean(loss(net->forward(x)) + loss(net->forward(2 * x)));
        const at::Tensor kept = loss(model(x));
        kept.backward({}, /*retain_graph=*/true);
        kept.backward();
        expect_mean(2 * loss(net->forward(x)));
        model.train(false);  // forward begins no pass
        loss(model(x)).backward();
        model.train();
        expect_mean(loss(net->forward(x)));
      }
    });
  }
}

TEST(Passes, OneRanksEvaluationLeavesTheBucketsOfTheOthersAlone) {
  struct Two : nn::Module {
    Two() {
      register_module("first", first);
      register_module("second", second);
    }
    at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
    nn::Linear first{2, 2};
    nn::Linear second{2, 2};
  };
  run_world(2, [](int rank) {
    auto net = std::make_shared<Two>();
    DistributedDataParallel model(net);
    const at::Tensor loss = model(torch::full({1, 2}, rank + 1.)).sum();
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_FALSE(model.core().has_rebuilt_buckets());
    const std::vector<at::Tensor> own = torch::autograd::grad({loss}, net->parameters(), {}, true);
    if (rank == 0) {  // between the first pass and the second, for which buckets are made anew
      model.train(false);
      model(torch::ones({1, 2}));
      model.train();
    }
    net->zero_grad();
    loss.backward();
    EXPECT_TRUE(model.core().has_rebuilt_buckets());
    for (std::size_t i = 0; i < own.size(); ++i)
      EXPECT_TRUE(at::equal(net->parameters()[i].grad(), mean_over_ranks(own[i]))) << i;
  });
}

TEST(Passes, AForwardInsideAnotherIsOfItsOwnKind) {
  struct Asking : nn::Module {
    Asking() { register_module("layer", layer); }
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor y = layer(x);
      if (const auto ask = std::exchange(inside, {})) ask();
      return y;
    }
    nn::Linear layer{2, 1};
    std::function<void()> inside;
  };
  run_world(2, [](int rank) {
    auto net = std::make_shared<Asking>();
    DistributedDataParallel model(net);
    const at::Tensor x = torch::full({1, 2}, rank + 1.);
    const std::vector<std::function<void()>> all = {[&] {
                                                      const torch::NoGradGuard no_grad;
                                                      model(x);
                                                    },
                                                    [&] {
                                                      const auto guard = model.no_sync();
                                                      model(x);
                                                    }};
    for (const auto& inside : all) {
      if (rank == 0) net->inside = inside;
      net->zero_grad();
      model(x).sum().backward();
      EXPECT_TRUE(tensor::all_equal(net->layer->weight.grad(), 1.5));
    }
  });
}

TEST(Passes, GradientsOfATaskInsideAndOfTheLossAloneAreOfTheSecondPassToo) {
  struct Two : nn::Module {
    Two() {
      first = register_parameter("first", torch::ones({2}));
      second = register_parameter("second", torch::ones({2}));
      own = register_parameter("own", torch::ones({2}));
    }
    at::Tensor forward(const at::Tensor& x) { return x * own; }
    at::Tensor first, second, own;
  };
  for (const bool static_graph : {false, true}) {
    run_world(2, [&](int rank) {
      auto net = std::make_shared<Two>();
      DistributedDataParallel model(net, {.static_graph = static_graph});
      const at::Tensor x = torch::full({2}, rank + 1.);
      for (int step = 0; step < 3; ++step) {
        const at::Tensor output = model(x).sum();
        const auto backward = [&] {
          const at::Tensor part = checkpoint(
              {.reentrant = true}, [net](const at::Tensor& y) { return y * net->second; },
              x.clone().requires_grad_());
          (output + part.sum() + (x * net->first).sum()).backward({}, /*retain_graph=*/true);
        };
        backward();
        net->zero_grad();
        backward();
        for (const at::Tensor& parameter : net->parameters())
          EXPECT_TRUE(tensor::all_equal(parameter.grad(), 1.5)) << step;
        net->zero_grad();
      }
    });
  }
}

TEST(Passes, AStaticGraphIsThatOfItsFirstPassAlone) {
  run_world(2, [](int rank) {
    nn::Linear net(2, 1);
    DistributedDataParallel model(net, {.static_graph = true});
    const at::Tensor x = torch::full({1, 2}, rank + 1.);
    model.train(false);
    const at::Tensor first = model(x).sum();
    model.train();
    {
      const auto guard = model.no_sync();
      model(x).sum().backward();  // between the first pass's forward and its backward
    }
    first.backward();
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      model(x).sum().backward();
      EXPECT_TRUE(tensor::all_equal(net->weight.grad(), 1.5));
    }
  });
}

TEST(Passes, GradientsThatNoForwardLedToAreWarnedAboutOnce) {
  run_world(2, [](int rank) {
    nn::Linear net(2, 1);
    DistributedDataParallel model(net);
    const at::Tensor x = torch::full({1, 2}, rank + 1.);
    const auto said_by = [&](const auto& act) {
      ::testing::internal::CaptureStderr();
      act();
      return ::testing::internal::GetCapturedStderr();
    };
    const std::string none = said_by([&] {
      model(x).sum().backward();
      {
        const auto guard = model.no_sync();
        model(x).sum().backward();
      }
      model.train(false);
      model(x).sum().backward();
      {
        const auto guard = model.no_sync();
        model(x).sum().backward();
      }
      model.train();
      model(x).sum().backward();
    });
    EXPECT_EQ(none, "");
    const std::string once = said_by([&] {
      for (int step = 0; step < 2; ++step) model->forward(x).sum().backward();
    });
    EXPECT_THAT(once, ::testing::AllOf(::testing::HasSubstr("\"weight\""), ::testing::HasSubstr("\"bias\""),
                                       ::testing::HasSubstr("not model->forward()")));
    const auto first = once.find("nothing reduces them");
    EXPECT_EQ(once.find("nothing reduces them", first + 1), std::string::npos);
  });
}

TEST(Passes, EveryBackwardThroughASynchronisedForwardIsReduced) {
  const std::vector<DataParallelOptions> options = {
      {},
      {.find_unused_parameters = true},
      {.static_graph = true},
      {.gradient_as_bucket_view = false, .batched_grad_copy = true}};
  for (const int size : {2, 3}) {
    run_world(size, [&](int rank) {
      const double mean = (size + 1) / 2.;  // of the inputs
      for (const DataParallelOptions& each : options) {
        nn::Linear net(2, 1);
        DistributedDataParallel model(net, each);
        const at::Tensor x = torch::full({1, 2}, rank + 1.);
        const auto expect = [&](double times) {
          EXPECT_TRUE(at::allclose(net->weight.grad(), torch::full({1, 2}, times * mean)));
          const at::Tensor first = net->weight.grad().clone();
          tensor::broadcast(first, {.src = 0});
          EXPECT_TRUE(at::equal(net->weight.grad(), first));
          net->zero_grad();
        };
        for (int step = 0; step < 3; ++step) {
          const at::Tensor one = model(x).sum();
          const at::Tensor other = model(2 * x).sum();
          one.backward({}, /*retain_graph=*/true);
          other.backward();
          expect(3);
          // After others, and after another forward, which begins a pass.
          const at::Tensor third = model(3 * x).sum();
          one.backward();
          third.backward({}, /*retain_graph=*/true);
          third.backward();
          expect(7);
          // Beside what stays the rank's own until then.
          at::Tensor apart;
          {
            const auto guard = model.no_sync();
            apart = model(4 * x).sum();
          }
          const at::Tensor last = model(x).sum();
          apart.backward();
          last.backward();
          expect(5);
        }
      }
    });
  }
}

TEST(Passes, EveryBackwardForTheParametersAloneIsReduced) {
  for (const DataParallelOptions& each :
       {DataParallelOptions{}, DataParallelOptions{.find_unused_parameters = true},
        DataParallelOptions{.static_graph = true}}) {
    run_world(2, [&](int rank) {
      nn::Linear net(2, 1);
      DistributedDataParallel model(net, each);
      const at::Tensor x = torch::full({1, 2}, rank + 1.);
      const auto parameters = net->parameters();
      for (int step = 0; step < 3; ++step) {
        const at::Tensor one = model(x).sum();
        const at::Tensor other = model(2 * x).sum();
        one.backward({}, /*retain_graph=*/true, /*create_graph=*/false, parameters);
        one.backward({}, false, false, parameters);
        other.backward({}, false, false, parameters);
        EXPECT_TRUE(tensor::all_equal(net->weight.grad(), 4 * 1.5));
        EXPECT_TRUE(tensor::all_equal(net->bias.grad(), 3));
        net->zero_grad();
      }
    });
  }
}

TEST(Passes, BackwardForOtherInputsIsARanksOwn) {
  for (const DataParallelOptions& each :
       {DataParallelOptions{}, DataParallelOptions{.find_unused_parameters = true},
        DataParallelOptions{.static_graph = true}}) {
    run_world(2, [&](int rank) {
      nn::Linear net(2, 1);
      DistributedDataParallel model(net, each);
      for (int step = 0; step < 3; ++step) {
        const at::Tensor x = torch::full({1, 2}, rank + 1.).requires_grad_();
        const at::Tensor loss = model(x).sum();
        if (rank == 0) loss.backward({}, /*retain_graph=*/true, /*create_graph=*/false, std::vector{x});
        EXPECT_EQ(x.grad().defined(), rank == 0);
        EXPECT_FALSE(net->weight.grad().defined());
        loss.backward();
        EXPECT_TRUE(tensor::all_equal(net->weight.grad(), 1.5));
        net->zero_grad();
      }
    });
  }
}

// Two branches, of which forward takes those that it is told.
struct Branches : nn::Module {
  Branches() {
    register_module("left", left);
    register_module("right", right);
  }
  at::Tensor forward(const at::Tensor& x, bool to_the_left) { return to_the_left ? left(x) : right(x); }
  nn::Linear left{2, 1};
  nn::Linear right{2, 1};
};

TEST(Passes, ForwardsOfOnePassMayTakeDifferentBranches) {
  run_world(2, [](int rank) {
    auto net = std::make_shared<Branches>();
    DistributedDataParallel model(net, {.find_unused_parameters = true});
    const at::Tensor x = torch::full({1, 2}, rank + 1.);
    for (int step = 0; step < 6; ++step) {
      model.train(step < 3);
      (model(x, true).sum() + model(x, false).sum()).backward();
      EXPECT_TRUE(tensor::all_equal(net->left->weight.grad(), 1.5));
      EXPECT_TRUE(tensor::all_equal(net->right->weight.grad(), 1.5));
      net->zero_grad();
      // One after the other, and what is over once more.
      const at::Tensor to_the_left = model(x, true).sum();
      const at::Tensor to_the_right = model(x, false).sum();
      to_the_left.backward({}, /*retain_graph=*/true);
      EXPECT_FALSE(net->right->weight.grad().defined());
      to_the_right.backward();
      const at::Tensor again = model(x, false).sum();
      to_the_left.backward();
      again.backward();
      EXPECT_TRUE(tensor::all_equal(net->left->weight.grad(), 2 * 1.5));
      EXPECT_TRUE(tensor::all_equal(net->right->weight.grad(), 2 * 1.5));
      net->zero_grad();
      // One whose graph is kept, and another.
      const at::Tensor kept = model(x, true).sum();
      kept.backward({}, /*retain_graph=*/true);
      (kept + model(x, false).sum()).backward();
      EXPECT_TRUE(tensor::all_equal(net->left->weight.grad(), 2 * 1.5));
      EXPECT_TRUE(tensor::all_equal(net->right->weight.grad(), 1.5));
      net->zero_grad();
      // One that no backward follows is no fault.
      model(x, true);
      model(x, false).sum().backward();
      EXPECT_TRUE(tensor::all_equal(net->right->weight.grad(), 1.5));
      EXPECT_FALSE(net->left->weight.grad().defined());
      net->zero_grad();
    }
  });
}

TEST(Passes, OneThatATaskInsideHasCompletedIsNotBegunAgain) {
  struct Inside : nn::Module {
    Inside() { register_module("layer", layer); }
    std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x) {
      const at::Tensor plain = 3 * x;
      return {plain,
              checkpoint(
                  {.reentrant = true}, [net = layer](const at::Tensor& y) mutable { return net(y); }, x)};
    }
    nn::Linear layer{2, 1};
  };
  run_world(2, [](int rank) {
    auto net = std::make_shared<Inside>();
    DistributedDataParallel model(net);
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      auto [plain, inside] = model(torch::full({1, 2}, rank + 1.).requires_grad_());
      (plain.sum() + inside.sum()).backward();  // backward comes to `plain` when all gradients are there
      EXPECT_TRUE(tensor::all_equal(net->layer->weight.grad(), 1.5));
    }
  });
}

}  // namespace
}  // namespace lockstep
