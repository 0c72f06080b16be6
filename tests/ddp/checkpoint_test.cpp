// Activation checkpoints: the same bits as without them, alone and under data parallelism.
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "lockstep/ddp/activation_checkpoint.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/reduction_error.h"
#include "lockstep/tensor/tensor_test_support.h"

namespace lockstep {
namespace {

namespace nn = torch::nn;
using tensor::expect_error;
using tensor::run_world;

enum class Keep { kAll, kEdges, kInputs };  // no checkpoints; not reentrant; reentrant

// Some layers with dropout between them, of which `uses` are used, in that order, each as a part of its own.
struct Deep : nn::Module {
  explicit Deep(Keep how) : keep(how) {
    torch::manual_seed(7);
    for (int i = 0; i < 4; ++i) layers->push_back(nn::Linear(6, 6));
    register_module("layers", layers);
  }
  at::Tensor forward(at::Tensor x, const std::vector<std::size_t>& uses) {
    for (const std::size_t i : uses) {
      const auto part = [layer = layers[i], this](const at::Tensor& y) {
        ++runs;
        return torch::tanh(torch::dropout(layer->as<nn::Linear>()->forward(y), 0.3, true));
      };
      x = keep == Keep::kAll ? part(x) : checkpoint({.reentrant = keep == Keep::kInputs}, part, x);
    }
    return x;
  }
  Keep keep;
  int runs = 0;
  nn::ModuleList layers;
};

at::Tensor batch(int rank, int step) {
  torch::manual_seed(100 * step + rank);
  return torch::randn({3, 6}).requires_grad_();
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.sizes() == b.sizes() &&
         std::memcmp(a.contiguous().const_data_ptr(), b.contiguous().const_data_ptr(), a.nbytes()) == 0;
}

void expect_same_gradients(const nn::Module& a, const nn::Module& b) {
  for (const auto& item : a.named_parameters())
    EXPECT_TRUE(same(item.value().grad(), b.named_parameters()[item.key()].grad())) << item.key();
}

TEST(Checkpoint, AloneGivesTheSameBitsAndRandomNumbers) {
  run_world(1, [](int) {
    for (const Keep how : {Keep::kEdges, Keep::kInputs}) {
      Deep plain(Keep::kAll);
      Deep saving(how);
      const auto train = [](Deep& net) {
        const at::Tensor x = batch(0, 0);
        const at::Tensor y = net.forward(x, {0, 1, 3, 2});
        const at::Tensor after_forward = torch::rand({2});
        y.square().sum().backward();
        return std::vector<at::Tensor>{y, x.grad(), after_forward, torch::rand({2})};
      };
      const auto expected = train(plain);
      const auto found = train(saving);
      for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same(expected[i], found[i])) << i;
      expect_same_gradients(plain, saving);
      EXPECT_EQ(plain.runs, 4);
      EXPECT_EQ(saving.runs, 8);
    }
  });
}

TEST(Checkpoint, UnderDataParallelismGivesTheSameBits) {
  using Options = DataParallelOptions;
  const std::vector<std::size_t> all = {0, 1, 2, 3};
  struct Case {
    Keep keep;
    Options options;
    std::vector<std::size_t> uses;
  };
  const std::vector<Case> cases = {
      {Keep::kEdges, {}, all},
      {Keep::kEdges, {}, {0, 1, 2, 3, 1}},
      {Keep::kEdges, {.find_unused_parameters = true}, {0, 2, 1}},
      {Keep::kEdges, {.static_graph = true}, {0, 2, 0}},
      {Keep::kEdges, {.bucket_cap_mb = 0.0001}, all},
      {Keep::kInputs, {}, all},
      {Keep::kInputs, {.static_graph = true}, {0, 2, 1, 2}},
      {Keep::kInputs, {.static_graph = true, .bucket_cap_mb = 0.0001}, all},
  };
  for (const int size : {1, 2}) {
    run_world(size, [&](int rank) {
      torch::set_num_threads(1);
      for (const Case& each : cases) {
        auto plain = std::make_shared<Deep>(Keep::kAll);
        auto saving = std::make_shared<Deep>(each.keep);
        // The same model without checkpoints may be told of its unused layers in another way.
        Options reference = each.options;
        if (each.uses.size() < 4 && !reference.static_graph) reference.find_unused_parameters = true;
        DistributedDataParallel expected(plain, reference);
        DistributedDataParallel model(saving, each.options);
        for (int step = 0; step < 3; ++step) {
          plain->zero_grad(step == 1);
          saving->zero_grad(step == 1);
          expected(batch(rank, step), each.uses).square().mean().backward();
          model(batch(rank, step), each.uses).square().mean().backward();
          expect_same_gradients(*plain, *saving);
        }
        EXPECT_EQ(saving->runs, 2 * plain->runs);
      }
    });
  }
}

TEST(Checkpoint, APartThatIsUsedTwiceAndReentrantNeedsAStaticGraph) {
  const std::vector<std::vector<std::size_t>> cases = {
      {0, 1, 2, 3, 1},  // again before the others
      {0, 0, 1, 2, 3}   // again when every gradient is there
  };
  for (const auto& uses : cases) {
    run_world(2, [&](int rank) {
      DistributedDataParallel model(std::make_shared<Deep>(Keep::kInputs));
      tensor::barrier();
      expect_error<DistBackendError>([&] { model(batch(rank, 0), uses).sum().backward(); },
                                     {"accumulated again", "static_graph"});
    });
  }
}

const std::vector<std::size_t> kAll = {0, 1, 2, 3};

// The outputs of so many forwards, added.
at::Tensor outputs_of(DistributedDataParallel<Deep>& model, int rank, int step, int forwards) {
  at::Tensor sum = model(batch(rank, 10 * step), kAll);
  for (int i = 1; i < forwards; ++i) sum = sum - (i + 1) * model(batch(rank, 10 * step + i), kAll);
  return sum;
}

TEST(Checkpoint, ForwardsOfOneBackwardThatAreReentrantNeedAStaticGraph) {
  run_world(2, [](int rank) {
    DistributedDataParallel model(std::make_shared<Deep>(Keep::kInputs));
    outputs_of(model, rank, 0, 1).square().sum().backward();
    tensor::barrier();
    expect_error<DistBackendError>([&] { outputs_of(model, rank, 1, 2).square().sum().backward(); },
                                   {"accumulated again", "several forwards", "static_graph"});
  });
  run_world(2, [](int rank) {
    torch::set_num_threads(1);
    auto plain = std::make_shared<Deep>(Keep::kAll);
    auto saving = std::make_shared<Deep>(Keep::kInputs);
    DistributedDataParallel expected(plain);
    DistributedDataParallel model(saving, {.static_graph = true});
    for (int step = 0; step < 3; ++step) {
      plain->zero_grad();
      saving->zero_grad();
      outputs_of(expected, rank, step, 2).square().sum().backward();
      outputs_of(model, rank, step, 2).square().sum().backward();
      expect_same_gradients(*plain, *saving);
    }
  });
}

TEST(Checkpoint, BucketsAreLaunchedInsideAndWaitedForAtTheEnd) {
  run_world(2, [](int rank) {
    DistributedDataParallel model(std::make_shared<Deep>(Keep::kInputs),
                                  {.bucket_cap_mb = 0.0001, .first_bucket_cap_mb = 0.0001});
    std::vector<PassPhase> phases;
    model.observe([&](const PassEvent& event) { phases.push_back(event.phase); });
    for (int step = 0; step < 2; ++step) {
      phases.clear();
      outputs_of(model, rank, step, 1).sum().backward();
    }
    const auto launched = std::find(phases.begin(), phases.end(), PassPhase::kLaunched);
    const auto waited = std::find(phases.begin(), phases.end(), PassPhase::kWaited);
    EXPECT_NE(std::find(launched, waited, PassPhase::kReady), waited);
    EXPECT_EQ(std::find(waited, phases.end(), PassPhase::kReady), phases.end());
  });
}

TEST(Checkpoint, OfAModelInsideAnotherIsAPassOfItsOwn) {
  // A model whose parts are another, twice, and a layer of its own; each a checkpoint, and that of the other
  // has its own inside.
  struct Around : nn::Module {
    explicit Around(Keep how) : keep(how) {
      inner = register_module("inner",
                              std::make_shared<DistributedDataParallel<Deep>>(std::make_shared<Deep>(how)));
      head = register_module("head", nn::Linear(6, 6));
    }
    at::Tensor forward(at::Tensor x) {
      const std::vector<std::function<at::Tensor(const at::Tensor&)>> parts = {
          [this](const at::Tensor& y) { return (*inner)(y, kAll); },
          [this](const at::Tensor& y) { return (*inner)(y, kAll); },
          [this](const at::Tensor& y) { return head(y); }};
      for (const auto& part : parts)
        x = keep == Keep::kAll ? part(x) : checkpoint({.reentrant = true}, part, x);
      return x;
    }
    Keep keep;
    std::shared_ptr<DistributedDataParallel<Deep>> inner;
    nn::Linear head = nullptr;
  };
  run_world(2, [](int rank) {
    auto plain = std::make_shared<Around>(Keep::kAll);
    auto saving = std::make_shared<Around>(Keep::kInputs);
    DistributedDataParallel expected(plain);
    DistributedDataParallel model(saving);
    for (int step = 0; step < 3; ++step) {
      plain->zero_grad();
      saving->zero_grad();
      expected(batch(rank, step)).sum().backward();
      model(batch(rank, step)).sum().backward();
      for (const auto& item : plain->named_parameters())
        EXPECT_TRUE(at::allclose(item.value().grad(), saving->named_parameters()[item.key()].grad()));
    }
  });
}

TEST(Checkpoint, AStaticGraphHasNoMoreReentrantForwardsThanInItsFirstPass) {
  for (const int recorded : {1, 2}) {
    run_world(2, [&](int rank) {
      DistributedDataParallel model(std::make_shared<Deep>(Keep::kInputs), {.static_graph = true});
      for (int step = 0; step < 2; ++step) outputs_of(model, rank, step, recorded).sum().backward();
      tensor::barrier();
      expect_error<DistBackendError>([&] { outputs_of(model, rank, 2, recorded + 1).sum().backward(); },
                                     {"accumulated again", "every other must do the same"});
    });
  }
}

TEST(Checkpoint, OfAForwardUnderNoSyncIsNotAddedToASynchronisedOne) {
  for (const bool apart_is_first : {true, false}) {
    run_world(2, [&](int rank) {
      DistributedDataParallel model(std::make_shared<Deep>(Keep::kInputs));
      tensor::barrier();
      at::Tensor outputs;
      const auto apart = [&] {
        const auto guard = model.no_sync();
        return outputs_of(model, rank, 0, 1);
      };
      if (apart_is_first) outputs = apart();
      const at::Tensor synchronised = outputs_of(model, rank, 1, 1);
      if (!apart_is_first) outputs = apart();
      expect_error<DistBackendError>([&] { (outputs + synchronised).sum().backward(); },
                                     {"accumulated again", "several forwards"});
    });
  }
}

TEST(Checkpoint, BackwardUnderNoSyncBesideASynchronisedForwardGivesTheSameBits) {
  for (const bool is_static : {false, true}) {
    run_world(2, [&](int rank) {
      torch::set_num_threads(1);
      auto plain = std::make_shared<Deep>(Keep::kAll);
      auto saving = std::make_shared<Deep>(Keep::kInputs);
      DistributedDataParallel expected(plain, {.static_graph = is_static});
      DistributedDataParallel model(saving, {.static_graph = is_static});
      const auto train = [&](DistributedDataParallel<Deep>& each, int step) {
        each->zero_grad();
        const at::Tensor synchronised = outputs_of(each, rank, 2 * step, 1).sum();
        {
          const auto guard = each.no_sync();
          outputs_of(each, rank, 2 * step + 1, 1).sum().backward();
        }
        synchronised.backward();
      };
      for (int step = 0; step < 3; ++step) {
        train(expected, step);
        train(model, step);
        expect_same_gradients(*plain, *saving);
      }
    });
  }
}

// What it computes in a checkpoint is seen by nobody but the loss.
struct Keeping : nn::Module {
  explicit Keeping(bool in_one) : whole(in_one) {
    torch::manual_seed(7);
    register_module("first", first);
    register_module("last", last);
  }
  void forward(const at::Tensor& x) {
    const auto part = [this](const at::Tensor& y) { return last(whole ? first(y) : y); };
    loss = checkpoint({.reentrant = true}, part, whole ? x : first(x)).sum();
  }
  const bool whole;
  nn::Linear first{6, 6};
  nn::Linear last{6, 6};
  at::Tensor loss;
};

TEST(Checkpoint, APassWhoseEndIsSeenFromInsideACheckpointAloneIsRefused) {
  struct Case {
    bool whole;
    DataParallelOptions options;
  };
  for (const Case& each :
       {Case{false, {.static_graph = true}}, Case{true, {.static_graph = true}}, Case{true, {}}}) {
    run_world(2, [&](int rank) {
      DistributedDataParallel model(std::make_shared<Keeping>(each.whole), each.options);
      tensor::barrier();
      expect_error<DistBackendError>(
          [&] {
            model(batch(rank, 0));
            model->loss.backward();
          },
          {"backward inside another", "Return every tensor"});
    });
  }
  run_world(2, [](int rank) {  // the last gradient is that of a layer outside
    DistributedDataParallel model(std::make_shared<Keeping>(false));
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      model(batch(rank, step));
      model->loss.backward();
      for (const at::Tensor& parameter : model->parameters()) {
        at::Tensor first = parameter.grad().clone();
        tensor::broadcast(first, {.src = 0});
        EXPECT_TRUE(same(parameter.grad(), first));
      }
    }
  });
}

TEST(Checkpoint, AModelInsideOneIsNotCalledInItsOwnBackward) {
  run_world(2, [](int rank) {
    DistributedDataParallel model(std::make_shared<Deep>(Keep::kAll));
    tensor::barrier();
    const auto part = [&](const at::Tensor& x) { return model(x, kAll); };
    const at::Tensor whole = checkpoint({.reentrant = true}, part, batch(rank, 0));
    expect_error<DistBackendError>([&] { (whole + model(batch(rank, 1), kAll)).sum().backward(); },
                                   {"still runs", "reentrant checkpoint around the model"});
  });
}

TEST(Checkpoint, AWholeModelMayBeOneWithAStaticGraph) {
  run_world(2, [](int rank) {
    auto plain = std::make_shared<Deep>(Keep::kAll);
    auto whole = std::make_shared<Deep>(Keep::kAll);
    DistributedDataParallel expected(plain, {.static_graph = true});
    DistributedDataParallel model(whole, {.static_graph = true});
    const auto part = [&](const at::Tensor& x) { return model(x, std::vector<std::size_t>{0, 1, 2}); };
    for (int step = 0; step < 3; ++step) {
      expected(batch(rank, step), std::vector<std::size_t>{0, 1, 2}).sum().backward();
      checkpoint({.reentrant = true}, part, batch(rank, step)).sum().backward();
      expect_same_gradients(*plain, *whole);
    }
  });
}

TEST(Checkpoint, WhatTheFunctionCapturesGetsItsGradientOnce) {
  run_world(1, [](int) {
    const auto gradients = [](bool saving) {
      torch::manual_seed(3);
      const at::Tensor weight = torch::randn({4}).requires_grad_();
      const at::Tensor x = torch::randn({4}).requires_grad_();
      int calls = 0;
      weight.register_hook([&](const at::Tensor& gradient) {
        ++calls;
        return 2 * gradient;
      });
      const at::Tensor outer = (x * 3).tanh();  // a graph that the function has from outside
      const auto part = [weight, outer](const at::Tensor& y) {
        return std::pair(y * weight * outer, std::vector<at::Tensor>{y + outer, outer, weight});
      };
      const auto [first, more] = saving ? checkpoint(part, x) : part(x);
      (first.sum() + more[0].square().sum() + 5 * more[1].sum() + more[2].sum()).backward();
      EXPECT_EQ(calls, 1);
      return std::pair(weight.grad(), x.grad());
    };
    const auto [weight, x] = gradients(false);
    const auto [weight_saving, x_saving] = gradients(true);
    EXPECT_TRUE(at::allclose(weight, weight_saving));
    EXPECT_TRUE(at::allclose(x, x_saving));
  });
}

TEST(Checkpoint, IsNestedRetainedAndDifferentiatedTwice) {
  run_world(1, [](int) {
    nn::Linear layer(3, 3);
    layer->to(torch::kFloat64);  // the second derivatives cancel, and nobody adds them in one order
    const auto inner = [net = layer.ptr()](const at::Tensor& y) { return net->forward(y).sigmoid(); };
    const auto outer = [inner](const at::Tensor& y) { return checkpoint(inner, y.tanh()) * y; };
    const auto second = [&](const at::Tensor& y, const at::Tensor& x) {
      const at::Tensor first = torch::autograd::grad({y.sum()}, {x}, {}, true, true)[0];
      return torch::autograd::grad({first.square().sum()}, {layer->weight, x}, {}, true);
    };
    const at::Tensor x = torch::randn({2, 3}, torch::kFloat64).requires_grad_();
    const at::Tensor plain = inner(x.tanh()) * x;
    const at::Tensor saving = checkpoint(outer, x);
    const auto expected = second(plain, x);
    const auto found = second(saving, x);
    EXPECT_TRUE(at::allclose(expected[0], found[0]));
    EXPECT_TRUE(at::allclose(expected[1], found[1]));
    saving.sum().backward({}, /*retain_graph=*/true);
    const at::Tensor once = layer->weight.grad().clone();
    saving.sum().backward();
    EXPECT_TRUE(at::allclose(layer->weight.grad(), 2 * once));
    expect_error([&] { saving.sum().backward(); }, {"second time", "retain_graph"});
  });
}

TEST(Checkpoint, WithoutGradientsItIsThePlainCall) {
  run_world(1, [](int) {
    int runs = 0;
    const auto part = [&runs](const at::Tensor& y) {
      ++runs;
      return 2 * y;
    };
    EXPECT_FALSE(checkpoint(part, torch::ones({2})).requires_grad());
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(checkpoint({.reentrant = true}, part, torch::ones({2}).requires_grad_()).requires_grad());
    EXPECT_EQ(runs, 2);
  });
}

TEST(Checkpoint, WhatCannotBeRunAgainIsRefusedInWords) {
  run_world(1, [](int) {
    const auto twice = [](const at::Tensor& y) { return 2 * y.square(); };
    const at::Tensor x = torch::ones({2}).requires_grad_();
    at::Tensor changed = x * 1;
    const at::Tensor y = checkpoint(twice, changed);
    changed.add_(1);
    expect_error([&] { y.sum().backward(); }, {"input 0", "in place"});

    const at::Tensor other = torch::ones({2}).requires_grad_();
    bool again = false;
    const at::Tensor z =
        checkpoint([&](const at::Tensor& in) { return std::exchange(again, true) ? in * other : in * 3; }, x);
    expect_error([&] { z.sum().backward(); }, {"had not used before"});

    expect_error([&] { checkpoint({.reentrant = true}, twice, torch::ones({2})); },
                 {"no input needs a gradient"});
    const at::Tensor inner = checkpoint({.reentrant = true}, twice, x);
    expect_error([&] { torch::autograd::grad({inner.sum()}, {x}); }, {"backward() alone"});
  });
}

}  // namespace
}  // namespace lockstep
