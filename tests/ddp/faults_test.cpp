// What goes wrong in training, on one rank or on all: every rank is told, in words, and nobody waits.
#include <malloc.h>
#include <sys/resource.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>
#include <unistd.h>

#include <fstream>
#include <optional>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/reduction_error.h"
#include "lockstep/tensor/tensor_test_support.h"
#include "lockstep/testing/sanitized.h"
#include "two_layers.h"

namespace lockstep {
namespace {

namespace nn = torch::nn;
using tensor::expect_error;
using tensor::run_world;
using testing::ones;
using testing::Two;

// Throws in backward.
struct Bomb : torch::autograd::Function<Bomb> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw std::runtime_error("the bomb");
  }
};

// With a bomb between the layers, for who asks for it.
struct Mined : Two {
  using Two::forward;
  at::Tensor forward(const at::Tensor& x, const char*) { return second(Bomb::apply(first(x))); }
};

TEST(Faults, AnUnusedParameterIsNamedWithItsRank) {
  run_world(3, [](int rank) {
    // Nobody ends the model's group while another is still in its first pass.
    const ProcessGroup apart = tensor::new_group({0, 1, 2});
    const auto first_pass = [&](auto& model) {
      model(ones()).sum().backward();
      tensor::barrier({.group = apart});
    };
    {  // In the last pass there is: the others are told when the model goes.
      DistributedDataParallel model(std::make_shared<Two>(), {.process_group = tensor::new_group({0, 1, 2})});
      first_pass(model);
      if (rank == 1) {
        model(ones(), false).sum().backward();
      } else {
        expect_error<RemoteError>([&] { model(ones()).sum().backward(); },
                                  {"rank 1", "second.weight", "find_unused_parameters"});
      }
    }
    auto net = std::make_shared<Two>();
    DistributedDataParallel model(net);
    first_pass(model);
    if (rank == 1) {
      model(ones(), false).sum().backward();
      expect_error<ReductionError>([&] { model(ones()); },
                                   {"rank 1", "second.weight", "second.bias", "find_unused_parameters"});
    } else {
      expect_error<RemoteError>([&] { model(ones()).sum().backward(); }, {"rank 1", "second.weight"});
    }
  });
}

TEST(Faults, ABackwardThatReachesNoParameterIsNamedWithItsRank) {
  struct Around : nn::Module {
    Around() { register_module("layer", layer); }
    at::Tensor forward(const at::Tensor& x, bool uses_it = true) { return uses_it ? layer(x) : 2 * x; }
    nn::Linear layer{2, 2};
  };
  run_world(2, [](int rank) {
    DistributedDataParallel model(std::make_shared<Around>());
    const at::Tensor x = ones().requires_grad_();
    model(x).sum().backward();
    if (rank == 1) {
      model(x, false).sum().backward();
      expect_error<ReductionError>([&] { model(x); }, {"rank 1", "layer.weight", "find_unused_parameters"});
    } else {
      expect_error<RemoteError>([&] { model(x).sum().backward(); }, {"rank 1", "layer.weight"});
    }
  });
}

TEST(Faults, WhatOneRankThrowsIsHeardByTheOthers) {
  const auto heard = [](const std::function<void(DistributedDataParallel<Mined>&)>& fails,
                        const std::vector<std::string>& words) {
    run_world(2, [&](int rank) {
      DistributedDataParallel model(std::make_shared<Mined>());
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

TEST(Faults, WhatOneRankThrowsUnderNoSyncIsHeardByTheOthers) {
  const auto heard = [](const std::function<void(DistributedDataParallel<Mined>&)>& fails,
                        const std::vector<std::string>& words) {
    run_world(2, [&](int rank) {
      DistributedDataParallel model(std::make_shared<Mined>());
      model(ones()).sum().backward();
      if (rank == 1) {
        const auto guard = model.no_sync();
        EXPECT_THROW(fails(model), std::exception);
        EXPECT_THROW(tensor::barrier(), DistError);
      } else {
        {
          const auto guard = model.no_sync();
          model(ones()).sum().backward();
        }
        expect_error<RemoteError>([&] { model(ones()).sum().backward(); }, words);
      }
    });
  };
  heard([](auto& model) { model(torch::ones({1, 7})); }, {"rank 1", "forward", "shapes"});
  heard([](auto& model) { model(ones(), "with a bomb between").sum().backward(); }, {"rank 1", "backward"});
  heard(
      [](auto& model) {
        const at::Tensor output = model(ones());
        throw std::runtime_error("this batch has no labels");
      },
      {"rank 1", "between forward and backward"});
  // Nothing is a fault that ends well, or in eval mode.
  run_world(2, [](int rank) {
    DistributedDataParallel model(std::make_shared<Mined>());
    for (int step = 0; step < 3; ++step) {
      {
        const auto guard = model.no_sync();
        const at::Tensor dropped = model(ones());
        const at::Tensor loss = model(ones()).sum();
        loss.backward({}, /*retain_graph=*/true);
        loss.backward();
        model.train(false);
        if (rank == 1) {
          EXPECT_ANY_THROW(model(torch::ones({1, 7})));
        }
        model.train();
      }
      model(ones()).sum().backward();
    }
    tensor::barrier();
  });
}

TEST(Faults, AModuleIsWrappedAgainAfterAFailure) {
  struct Thrower : nn::Module {
    Thrower() { register_module("layer", layer); }
    at::Tensor forward(const at::Tensor& x, bool fails) {
      if (fails) throw 42;
      return layer(x);
    }
    nn::Linear layer{2, 2};
  };
  run_world(2, [](int rank) {
    const auto group = [] { return DataParallelOptions{.process_group = tensor::new_group({0, 1})}; };
    auto net = std::make_shared<Thrower>();
    DistributedDataParallel dead(net, group());
    dead(ones(), false).sum().backward();
    const std::vector<std::string> words = {"rank 1", "forward", "no std::exception"};
    if (rank == 1) {
      EXPECT_THROW(dead(ones(), true), int);
    } else {
      expect_error<RemoteError>([&] { dead(ones(), false).sum().backward(); }, words);
    }
    expect_error<DistError>([&] { dead(ones(), false).sum().backward(); }, words);
    DistributedDataParallel alive(net, group());
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      alive((rank + 1) * ones(), false).sum().backward();
      EXPECT_TRUE(tensor::all_equal(net->layer->weight.grad(), 1.5));
    }
  });
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

TEST(Faults, WhatAHookGivesIsRefusedWithTheParametersAndWhatToDo) {
  struct Case {
    CommHookPtr hook;
    std::vector<std::string> words;
  };
  const auto giving = [](const at::Tensor& buffer) {
    return function_hook([buffer](GradBucket& bucket) {
      bucket.set_buffer(buffer);
      return HookWork{};
    });
  };
  const auto changing = [](const std::function<void(const at::Tensor&)>& change) {
    return function_hook([change](GradBucket& bucket) {
      change(bucket.buffer());
      return HookWork{};
    });
  };
  run_world(2, [&](int rank) {
    const std::vector<Case> cases = {
        {giving(torch::ones({6}, at::kDouble)), {"6 elements of type Double", "Float"}},
        {giving(torch::ones({6}).to_sparse()), {"sparse buffer"}},
        {giving({}), {"undefined tensor"}},
        {bf16_compress_wrapper(giving(torch::ones({1}, at::kBFloat16))), {"1 elements of type BFloat16"}},
        {changing([](const at::Tensor& buffer) { buffer.resize_({2}); }), {"2 elements of type Float"}},
        {changing([](const at::Tensor& buffer) { buffer.resize_({7}); }), {"7 elements of type Float"}},
        {changing([](const at::Tensor& buffer) { buffer.set_data(torch::ones({3})); }), {"3 elements"}},
        {changing([](const at::Tensor& buffer) { buffer.set_data(torch::ones({6}, at::kHalf)); }), {"Half"}},
    };
    for (const Case& each : cases) {
      nn::Linear net(2, 2);
      DistributedDataParallel model(net, {.process_group = tensor::new_group({0, 1})});
      model.register_comm_hook(each.hook);
      std::vector<std::string> words = each.words;
      for (const char* word : {"\"weight\"", "\"bias\"", "bucket 0", "set_buffer()"})
        words.emplace_back(word);
      words.push_back(cat("rank ", rank));
      tensor::barrier();
      expect_error<ReductionError>([&] { model(ones()).sum().backward(); }, words);
    }
  });
}

TEST(Faults, WhatAHookGivesForASparseGradientIsRefusedToo) {
  run_world(2, [](int) {
    for (const at::Tensor& wrong : {torch::ones({4, 2}), torch::ones({4, 2}, at::kDouble).to_sparse()}) {
      nn::Embedding net(nn::EmbeddingOptions(4, 2).sparse(true));
      DistributedDataParallel model(net, {.process_group = tensor::new_group({0, 1})});
      model.register_comm_hook([&wrong](GradBucket& bucket) {
        bucket.set_buffer(wrong);
        return HookWork{};
      });
      tensor::barrier();
      expect_error<ReductionError>(
          [&] {
            model(torch::tensor({1, 2})).sum().backward();
          },
          {"\"weight\"", "no sparse gradient", "Float"});
    }
  });
}

TEST(Faults, AModuleThatHasChangedIsNamedOnEveryRank) {
  struct Change {
    std::function<void(Two&)> make;
    std::vector<std::string> words;
  };
  const std::vector<Change> changes = {
      {[](Two& net) { net.first->bias.requires_grad_(false); }, {"first.bias", "no longer needs"}},
      {[](Two& net) { net.to(at::kDouble); }, {"first.weight", "another type"}},
      {[](Two& net) {
         net.second->weight.set_data(torch::ones({2, 1}));
       },
       {"second.weight", "shape"}},
      {[](Two& net) { net.register_parameter("more", torch::ones({2})); }, {"more", "is new"}},
      {[](Two& net) { net.register_module("third", nn::Linear(2, 2)); }, {"third.weight", "is new"}},
      {[](Two& net) { net.unregister_module("second"); }, {"second.weight", "removed"}},
  };
  run_world(2, [&](int rank) {
    for (const Change& change : changes) {
      auto net = std::make_shared<Two>();
      DistributedDataParallel model(net, {.process_group = tensor::new_group({0, 1})});
      model(ones()).sum().backward();
      std::vector<std::string> words = change.words;
      words.push_back("wrap it again, on all ranks and for a new group");
      if (rank == 1) {
        change.make(*net);
        expect_error<InvalidArgument>([&] { model(ones()); }, words);
      } else {
        expect_error<RemoteError>([&] { model(ones()).sum().backward(); }, words);
      }
    }
  });
}

TEST(Faults, AnExceptionInTheLossIsHeardByTheOthers) {
  run_world(2, [](int rank) {
    DistributedDataParallel model(std::make_shared<Two>());
    model(ones()).sum().backward();
    const auto step = [&] {
      const at::Tensor output = model(ones());
      if (rank == 1) throw std::runtime_error("this batch has no labels");
      output.sum().backward();
    };
    if (rank == 1) {
      EXPECT_THROW(step(), std::runtime_error);
      expect_error<DistError>([&] { model(ones()).sum().backward(); }, {"between forward and backward"});
    } else {
      expect_error<RemoteError>(step, {"rank 1", "between forward and backward"});
    }
  });
  // Outputs that are dropped on purpose are no fault, nor is an exception that leaves none behind.
  run_world(2, [](int) {
    DistributedDataParallel model(std::make_shared<Two>());
    for (int step = 0; step < 2; ++step) {
      {
        const at::Tensor dropped = model(ones());
      }
      try {
        throw std::runtime_error("elsewhere");
      } catch (const std::exception&) {
        model(ones()).sum().backward();
      }
      model.train(false);
      try {
        const at::Tensor evaluated = model(ones());
        throw std::runtime_error("while evaluating");
      } catch (const std::exception&) {
        model.train();
      }
    }
    tensor::barrier();
  });
}

// While it lives, this process gets so much more memory than it has.
class MemoryLimit {
 public:
  explicit MemoryLimit(rlim_t mib) {
    EXPECT_EQ(::getrlimit(RLIMIT_AS, &before_), 0);
    std::ifstream statm("/proc/self/statm");
    rlim_t pages = 0;
    statm >> pages;
    const rlim_t bytes = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (mib << 20);
    const rlimit limit{bytes, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
  }
  ~MemoryLimit() { ::setrlimit(RLIMIT_AS, &before_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_{};
};

TEST(Faults, ARankThatIsOutOfMemoryTellsTheOthers) {
  if (testing::kSanitized) GTEST_SKIP() << "the sanitizer takes memory of its own";
  // Gradients of 16 MiB, in one bucket of 64, which the hook halves: where 8 MiB are left, autograd has not
  // enough; where 24 are left, the hook.
  for (const rlim_t left : {rlim_t{8}, rlim_t{24}}) {
    run_world(2, [&](int rank) {
      torch::set_num_threads(1);
      ::mallopt(M_MMAP_THRESHOLD, 1 << 20);  // what is freed is given back, and does not help later
      nn::Sequential net;
      for (int i = 0; i < 4; ++i) net->push_back(nn::Linear(nn::LinearOptions(2048, 2048).bias(false)));
      DistributedDataParallel model(net, {.bucket_cap_mb = 1000});
      model.register_comm_hook(fp16_compress_hook());
      const at::Tensor x = torch::ones({1, 2048});
      const auto step = [&](bool limited) {
        net->zero_grad(false);
        const at::Tensor loss = model(x).sum();
        std::optional<MemoryLimit> limit;
        if (limited) limit.emplace(left);
        loss.backward();
      };
      step(false);
      step(false);
      if (rank == 1) {
        EXPECT_THROW(step(true), c10::Error);
        EXPECT_THROW(tensor::barrier(), DistError);
      } else {
        expect_error<RemoteError>([&] { step(false); }, {"rank 1"});
      }
    });
  }
}

TEST(Faults, AStaticGraphThatChangesIsNoticed) {
  run_world(2, [](int) {
    auto net = std::make_shared<Two>();
    DistributedDataParallel model(net, {.static_graph = true});
    model(ones(), false).sum().backward();
    EXPECT_FALSE(net->second->weight.grad().defined());
    model(ones(), false).sum().backward();
    EXPECT_EQ(model.logging_data().numbers.at("has_error"), 0);
    EXPECT_EQ(model.logging_data().texts.at("error"), "");
    tensor::barrier();
    expect_error<DistBackendError>([&] { model(ones(), true).sum().backward(); }, {"second", "static_graph"});
    EXPECT_EQ(model.logging_data().numbers.at("has_error"), 1);
    EXPECT_THAT(model.logging_data().texts.at("error"), ::testing::HasSubstr("second"));
  });
}

}  // namespace
}  // namespace lockstep
