// What goes wrong in training, on one rank or on all: every rank is told, in words, and nobody waits.
#include <malloc.h>
#include <sys/resource.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>
#include <unistd.h>

#include <fstream>
#include <optional>

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
    {  // In the last pass there is: the others are told when the model goes.
      DistributedDataParallel model(std::make_shared<Two>(), {.process_group = tensor::new_group({0, 1, 2})});
      model(ones()).sum().backward();
      if (rank == 1) {
        model(ones(), false).sum().backward();
      } else {
        expect_error<RemoteError>([&] { model(ones()).sum().backward(); },
                                  {"rank 1", "second.weight", "find_unused_parameters"});
      }
    }
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
  run_world(2, [&](int rank) {
    const std::vector<Case> cases = {
        {giving(torch::ones({6}, at::kDouble)), {"6 elements of type Double", "Float"}},
        {giving(torch::ones({6}).to_sparse()), {"sparse buffer"}},
        {giving({}), {"undefined tensor"}},
        {bf16_compress_wrapper(giving(torch::ones({1}, at::kBFloat16))), {"1 elements of type BFloat16"}},
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

TEST(Faults, ModelsThatDifferAreRefusedOnEveryRank) {
  struct Case {
    std::function<void(nn::Module&)> on_rank_one;
    std::vector<std::string> words;
    DataParallelOptions options_on_rank_one = {};
  };
  const auto nothing = [](nn::Module&) {};
  const std::vector<Case> cases = {
      {[](nn::Module& net) {
         net.parameters()[0].set_data(torch::ones({3, 2}));
       },
       {"parameter \"weight\"", "[3, 2]", "[2, 2]"}},
      {[](nn::Module& net) {
         net.parameters()[0].set_data(torch::ones({2, 2}).t());
       },
       {"parameter \"weight\"", "strides [1, 2]", "strides [2, 1]"}},
      {[](nn::Module& net) { net.to(at::kDouble); }, {"parameter \"weight\"", "Double", "Float"}},
      {[](nn::Module& net) { net.parameters()[1].requires_grad_(false); }, {"\"bias\"", "no gradient"}},
      {[](nn::Module& net) { net.register_parameter("more", torch::ones({1})); },
       {"the parameter \"more\", which rank 0 has not"}},
      {[](nn::Module& net) { net.register_buffer("later", torch::ones({1})); },
       {"the buffer \"later\", which rank 0 has not"}},
      {[](nn::Module& net) {
         net.named_buffers()["state"].set_data(torch::ones({2, 1}));
       },
       {"buffer \"state\"", "[2, 1]", "[1, 2]"}},
      {nothing, {"has no parameter \"bias\""}, {.parameters_and_buffers_to_ignore = {"bias"}}},
      {nothing, {"\"bias\" where rank 0 has \"weight\""}, {.parameters_and_buffers_to_ignore = {"weight"}}},
      {nothing, {"other options", "static_graph"}, {.static_graph = true}},
      {nothing, {"other options", "forward_sync_buffers off"}, {.forward_sync_buffers = false}},
      {nothing, {"other options", "weight sparse"}, {.sparse_parameters = {"weight"}}},
      {nothing, {"other options", "buckets of 2097152"}, {.bucket_cap_mb = 2}},
  };
  run_world(3, [&](int rank) {
    for (const Case& each : cases) {
      nn::Linear net(2, 2);
      net->register_buffer("state", torch::ones({1, 2}));
      if (rank == 1) each.on_rank_one(*net);
      std::vector<std::string> words = each.words;
      words.push_back(cat("rank ", rank, ": DistributedDataParallel: the models differ: rank 1 "));
      words.emplace_back("Wrap the same module with the same options on all ranks");
      const DataParallelOptions options = rank == 1 ? each.options_on_rank_one : DataParallelOptions{};
      expect_error([&] { DistributedDataParallel model(net, options); }, words);
      tensor::barrier();  // the group lives on
    }
  });
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
    refused({.bucket_cap_mb_list = {1, -1}}, {"bucket_cap_mb_list", "-1"});
    refused({.sparse_parameters = {"weigth"}}, {"sparse_parameters", "\"weigth\""});
    refused({.parameters_and_buffers_to_ignore = {"weigth"}},
            {"ignore", "\"weigth\"", "no parameter or buffer"});
    DistributedDataParallel one_bucket(net, {.bucket_cap_mb = 1e300});
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

    refused({.delay_all_reduce_named_params = {"bias"}}, {"param_to_hook_all_reduce", "together"});
    refused({.delay_all_reduce_named_params = {"bias"}, .param_to_hook_all_reduce = "wait"},
            {"param_to_hook_all_reduce", "wait"});
    refused({.static_graph = true,
             .delay_all_reduce_named_params = {"bias"},
             .param_to_hook_all_reduce = "weight"},
            {"delay_all_reduce_named_params", "static_graph"});
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

TEST(Faults, ANeedlessSearchIsWarnedAboutOnce) {
  run_world(2, [](int) {
    DistributedDataParallel model(std::make_shared<Two>(), {.find_unused_parameters = true});
    ::testing::internal::CaptureStderr();
    for (int step = 0; step < 3; ++step) model(ones()).sum().backward();
    const std::string said = ::testing::internal::GetCapturedStderr();
    const auto first = said.find("find_unused_parameters is set");
    EXPECT_NE(first, std::string::npos);
    EXPECT_EQ(said.find("find_unused_parameters is set", first + 1), std::string::npos);
  });
}

// A layer, and a tensor that was never registered.
struct Careless : nn::Module {
  Careless() { register_module("layer", layer); }
  at::Tensor forward(const at::Tensor& x) { return layer(x) * scale; }
  nn::Linear layer{2, 2};
  at::Tensor scale = torch::ones({1, 2}, at::TensorOptions().requires_grad(true));
};

std::size_t times_warned(const std::string& said) {
  std::size_t times = 0;
  const std::string sentence = "no parameter of the module";
  for (auto at = said.find(sentence); at != std::string::npos; at = said.find(sentence, at + 1)) ++times;
  return times;
}

TEST(Faults, ATensorThatWasNotRegisteredIsWarnedAboutOnce) {
  run_world(2, [](int rank) {
    DistributedDataParallel model(std::make_shared<Careless>());
    ::testing::internal::CaptureStderr();
    for (int step = 0; step < 3; ++step) model(ones()).sum().backward();
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(times_warned(said), 1U) << said;
    EXPECT_THAT(said, ::testing::HasSubstr(cat("rank ", rank, ": DistributedDataParallel: forward uses 1")));
    EXPECT_THAT(said, ::testing::HasSubstr("Float of shape [1, 2]"));
    EXPECT_THAT(said, ::testing::HasSubstr("register_parameter()"));
  });
}

TEST(Faults, WhatBelongsToOthersIsNotWarnedAbout) {
  struct Inputs {
    at::Tensor x;
  };
  struct Taking : nn::Module {
    Taking() { register_module("layer", layer); }
    at::Tensor forward(const Inputs& inputs) { return layer(inputs.x); }
    at::Tensor forward(const std::vector<at::Tensor>& both) { return layer(both[0]) * both[1]; }
    nn::Linear layer{2, 2};
  };
  run_world(2, [](int) {
    ::testing::internal::CaptureStderr();
    nn::Linear before(2, 2);
    const at::Tensor leaf = ones().requires_grad_();
    DistributedDataParallel first(std::make_shared<Two>());
    DistributedDataParallel second(std::make_shared<Two>());
    second(first(before(leaf))).sum().backward();
    DistributedDataParallel taking(std::make_shared<Taking>());
    taking(std::vector{before(leaf), leaf}).sum().backward();
    DistributedDataParallel opaque(std::make_shared<Taking>());  // what it is given cannot be looked into
    opaque(Inputs{before(leaf)}).sum().backward();
    DistributedDataParallel ignoring(std::make_shared<Two>(),
                                     {.parameters_and_buffers_to_ignore = {"first.weight"}});
    ignoring(leaf).sum().backward();
    EXPECT_EQ(times_warned(::testing::internal::GetCapturedStderr()), 0U);
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

TEST(Faults, AModelThatOutlivesItsWorldSaysSo) {
  EXPECT_OK(testing::ProcessWorld(2, std::chrono::minutes(3)).run([](const SpawnedRank& rank) {
    nn::Linear net(2, 2);
    std::optional<DistributedDataParallel<nn::LinearImpl>> model;
    at::Tensor loss;
    {
      const auto world = init_process_group({.environment = rank.environment});
      model.emplace(net);
      (*model)(ones()).sum().backward();
      loss = (*model)(ones()).sum();
    }
    EXPECT_TRUE(tensor::all_equal(net->weight.grad(), 1));
    net->zero_grad(false);
    expect_error([&] { loss.backward(); }, {"init_process_group"});
    expect_error([&] { (*model)(ones()).sum().backward(); }, {"init_process_group"});
    const torch::NoGradGuard no_grad;
    EXPECT_EQ((*model)(ones()).numel(), 2);
  }));
}

TEST(Faults, GradientsOfAnotherKindOrTooLateAreNamedWithWhatToDo) {
  struct Looks : nn::Module {
    Looks() { table = register_parameter("table", torch::ones({3, 2})); }
    at::Tensor forward(const at::Tensor& i) { return torch::embedding(table, i, -1, false, /*sparse=*/true); }
    at::Tensor table;
  };
  run_world(2, [](int rank) {
    const auto at = cat("rank ", rank);
    const auto group = [] { return tensor::new_group({0, 1}); };
    DistributedDataParallel looks(std::make_shared<Looks>(), {.process_group = group()});
    DistributedDataParallel dense(std::make_shared<Two>(),
                                  {.process_group = group(), .sparse_parameters = {"first.weight"}});
    DistributedDataParallel late(std::make_shared<Two>(),
                                 {.process_group = group(),
                                  .delay_all_reduce_named_params = {"first.weight", "second.weight"},
                                  .param_to_hook_all_reduce = "second.weight"});
    tensor::barrier();
    expect_error<ReductionError>(
        [&] {
          looks(torch::tensor({1, 2})).sum().backward();
        },
        {at, "\"table\"", "sparse_parameters"});
    expect_error<ReductionError>([&] { dense(ones()).sum().backward(); },
                                 {at, "\"first.weight\"", "leave the parameter out of sparse_parameters"});
    expect_error<ReductionError>([&] { late(ones()).sum().backward(); },
                                 {at, "\"first.weight\"", "whose gradient comes last"});
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
