// What goes wrong in training, on one rank or on all: every rank is told, in words, and nobody waits.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/reduction_error.h"
#include "lockstep/tensor/tensor_test_support.h"

namespace lockstep {
namespace {

namespace nn = torch::nn;
using tensor::expect_error;
using tensor::run_world;

at::Tensor ones() { return torch::ones({1, 2}); }

// Throws in backward.
struct Bomb : torch::autograd::Function<Bomb> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw std::runtime_error("the bomb");
  }
};

// Two layers, of which `use` says which are used.
struct Two : nn::Module {
  Two() {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x, bool use_second = true) {
    return use_second ? second(first(x)) : first(x);
  }
  at::Tensor forward(const at::Tensor& x, const char*) { return second(Bomb::apply(first(x))); }
  nn::Linear first{2, 2};
  nn::Linear second{2, 2};
};

TEST(Faults, AnUnusedParameterIsNamedWithItsRank) {
  run_world(3, [](int rank) {
    auto net = std::make_shared<Two>();
    DistributedDataParallel model(net);
    model(ones()).sum().backward();
    if (rank == 1) {
      model(ones(), false).sum().backward();
      expect_error<ReductionError>([&] { model(ones()); },
                                   {"rank 1", "second.weight", "second.bias", "find_unused_parameters"});
    } else {
      expect_error<RemoteError>([&] { model(ones()).sum().backward(); }, {"rank 1", "second.weight"});
    }
  });
}

TEST(Faults, WhatOneRankThrowsIsHeardByTheOthers) {
  const auto heard = [](const std::function<void(DistributedDataParallel<Two>&)>& fails,
                        const std::vector<std::string>& words) {
    run_world(2, [&](int rank) {
      DistributedDataParallel model(std::make_shared<Two>());
      model(ones()).sum().backward();
      if (rank == 1) {
        EXPECT_THROW(fails(model), std::exception);
        EXPECT_THROW(tensor::barrier(), DistError);
      } else {
        expect_error<RemoteError>([&] { model(ones()).sum().backward(); }, words);
      }
    });
  };
  heard([](auto& model) { model(torch::ones({1, 7})); }, {"rank 1", "forward", "shapes"});
  heard([](auto& model) { model(ones(), "with a bomb between").sum().backward(); }, {"rank 1", "backward"});
}

TEST(Faults, WhatAHookThrowsIsHeardByTheOthers) {
  run_world(2, [](int rank) {
    nn::Linear net(2, 2);
    DistributedDataParallel model(net);
    model.register_comm_hook([rank](GradBucket& bucket) {
      if (rank == 1) throw std::runtime_error("the hook is out of ideas");
      return HookWork{tensor::all_reduce(bucket.buffer(), {.async_op = true})};
    });
    tensor::barrier();
    if (rank == 1) {
      EXPECT_THROW(model(ones()).sum().backward(), std::runtime_error);
    } else {
      expect_error<RemoteError>([&] { model(ones()).sum().backward(); }, {"rank 1", "out of ideas"});
    }
  });
  run_world(2, [](int) {
    nn::Linear net(2, 2);
    DistributedDataParallel model(net);
    model.register_comm_hook([](GradBucket& bucket) {
      bucket.set_buffer(torch::ones({3}));
      return HookWork{};
    });
    tensor::barrier();
    expect_error<DistBackendError>([&] { model(ones()).sum().backward(); }, {"bucket 0", "3 elements", "6"});
    // The pass is over: what comes next is the group's failure, not a complaint about parameters.
    expect_error<DistBackendError>([&] { model(ones()).sum().backward(); }, {"bucket 0"});
  });
}

TEST(Faults, ModelsThatDifferAreRefusedOnEveryRank) {
  const auto differ = [](const std::function<std::shared_ptr<nn::Module>(int)>& make,
                         const std::vector<std::string>& words) {
    run_world(3, [&](int rank) {
      expect_error([&] { ddp::DataParallel::make(ddp::view_of(make(rank)), {}); }, words);
      tensor::barrier();  // the group lives on
    });
  };
  differ([](int rank) { return nn::Linear(2, rank == 2 ? 3 : 2).ptr(); },
         {"rank 2", "weight", "[3, 2]", "[2, 2]"});
  differ([](int rank) { return nn::Linear(nn::LinearOptions(2, 2).bias(rank != 1)).ptr(); },
         {"rank 1", "1 parameter"});
  differ(
      [](int rank) {
        nn::Linear net(2, 2);
        if (rank == 1) net->to(at::kDouble);
        return net.ptr();
      },
      {"rank 1", "weight", "Double", "Float"});
  differ(
      [](int rank) {
        nn::Linear net(2, 2);
        net->bias.requires_grad_(rank != 1);
        return net.ptr();
      },
      {"rank 1", "bias", "no gradient"});
}

TEST(Faults, WrongUseIsRefusedInWords) {
  run_world(2, [](int rank) {
    nn::Linear net(2, 2);
    using Options = DataParallelOptions;
    const auto refused = [&](const Options& options, const std::vector<std::string>& words) {
      expect_error([&] { DistributedDataParallel model(net, options); }, words);
    };
    refused({.find_unused_parameters = true, .static_graph = true},
            {"static_graph", "find_unused_parameters"});
    refused({.bucket_cap_mb = 0}, {"bucket_cap_mb", "0"});
    refused({.bucket_cap_mb = 1, .bucket_cap_mb_list = {1}}, {"bucket_cap_mb_list"});
    refused({.skip_all_reduce_unused_params = true}, {"skip_all_reduce_unused_params"});
    const ProcessGroup one = tensor::new_group({0});
    if (rank == 1) refused({.process_group = one}, {"no member"});
    nn::Linear frozen(2, 2);
    for (const at::Tensor& parameter : frozen->parameters()) parameter.requires_grad_(false);
    expect_error([&] { DistributedDataParallel model(frozen); }, {"no parameter that needs a gradient"});

    DistributedDataParallel model(net);
    model.register_comm_hook(noop_hook());
    expect_error([&] { model.register_comm_hook(noop_hook()); }, {"noop", "before"});
    DistributedDataParallel late(net);
    late(ones()).sum().backward();
    expect_error([&] { late.register_comm_hook(noop_hook()); }, {"before the first"});

    net->bias.requires_grad_(false);
    expect_error([&] { late(ones()); }, {"bias", "no longer needs a gradient"});
    net->bias.requires_grad_(true);
    net->to(at::kDouble);
    expect_error([&] { late(ones()); }, {"weight", "another type"});
  });
}

TEST(Faults, AModelThatIsGoneLeavesItsModuleAsItWas) {
  run_world(2, [](int rank) {
    nn::Linear net(2, 2);
    at::Tensor loss;
    {
      DistributedDataParallel model(net);
      loss = model(rank * ones()).sum();
    }
    loss.backward();
    EXPECT_TRUE(tensor::all_equal(net->weight.grad(), rank));
    net->zero_grad();
    DistributedDataParallel again(net);
    again(rank * ones()).sum().backward();
    EXPECT_TRUE(tensor::all_equal(net->weight.grad(), 0.5));
    again.remove_autograd_hooks();
    net->zero_grad();
    again(rank * ones()).sum().backward();
    EXPECT_TRUE(tensor::all_equal(net->weight.grad(), rank));
  });
}

TEST(Faults, AHookMayBeRegisteredBetweenForwardAndBackward) {
  run_world(2, [](int rank) {
    nn::Linear net(2, 2);
    DistributedDataParallel model(net);
    const at::Tensor loss = model((rank + 1) * ones()).sum();
    model.register_comm_hook(noop_hook());
    loss.backward();  // with the hook of its forward
    EXPECT_TRUE(tensor::all_equal(net->weight.grad(), 1.5));
    net->zero_grad();
    model((rank + 1) * ones()).sum().backward();
    EXPECT_TRUE(tensor::all_equal(net->weight.grad(), rank + 1));
    model.remove_autograd_hooks();
    expect_error([&] { model.update_process_group({}); }, {"update_process_group", "hooks were removed"});
  });
}

TEST(Faults, AStaticGraphThatChangesIsNoticed) {
  run_world(2, [](int) {
    auto net = std::make_shared<Two>();
    DistributedDataParallel model(net, {.static_graph = true});
    model(ones(), false).sum().backward();
    EXPECT_FALSE(net->second->weight.grad().defined());
    model(ones(), false).sum().backward();
    tensor::barrier();
    expect_error<DistBackendError>([&] { model(ones(), true).sum().backward(); }, {"second", "static_graph"});
  });
}

TEST(Faults, OutputsThatTheLossDoesNotUseAreNoFault) {
  struct Forked : nn::Module {
    Forked() {
      register_module("left", left);
      register_module("right", right);
    }
    std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x) { return {left(x), right(x)}; }
    nn::Linear left{2, 2};
    nn::Linear right{2, 2};
  };
  run_world(2, [](int rank) {
    auto net = std::make_shared<Forked>();
    DistributedDataParallel model(net, {.find_unused_parameters = true});
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      auto [left, right] = model((rank + 1) * ones());
      left.sum().backward();
      EXPECT_TRUE(tensor::all_equal(net->left->weight.grad(), 1.5));
      EXPECT_FALSE(net->right->weight.grad().defined());
    }
    // On one rank alone: averaged with nothing.
    net->zero_grad();
    auto [left, right] = model((rank + 1) * ones());
    (rank == 0 ? left : left + right).sum().backward();
    EXPECT_TRUE(tensor::all_equal(net->right->weight.grad(), 1));
  });
}

}  // namespace
}  // namespace lockstep
