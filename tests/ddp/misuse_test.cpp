// How a model is not to be used: what is refused, in words, what is warned about once, and what looks like a
// fault and is none.
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <optional>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/reduction_error.h"
#include "lockstep/tensor/tensor_test_support.h"
#include "two_layers.h"

namespace lockstep {
namespace {

namespace nn = torch::nn;
using tensor::expect_error;
using tensor::run_world;
using testing::ones;
using testing::Two;

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
      {nothing, {"other options", "from the start"}, {.bucket_cap_mb_list = {1, 25}}},
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

TEST(Faults, GradientsThatAreSparseOnOneRankAloneAreRefusedOnEveryRank) {
  run_world(2, [](int rank) {
    const nn::Embedding table(nn::EmbeddingOptions(3, 2).sparse(rank == 1));
    expect_error(
        [&] { DistributedDataParallel model(table); },
        {"rank 1 has the gradient of \"weight\" as 6 sparse elements", "rank 0 as 6 elements of type"});
  });
}

TEST(Faults, WhatOneRankRefusesIsThrownOnEveryRank) {
  struct Case {
    DataParallelOptions options;  // of the rank that refuses
    std::string why;
    std::function<void(nn::Linear&)> changes = [](nn::Linear&) {};
  };
  const std::vector<Case> cases = {
      {{.bucket_cap_mb = 0}, "bucket_cap_mb is 0"},
      {{.find_unused_parameters = true, .static_graph = true}, "static_graph and find_unused_parameters"},
      {{.parameters_and_buffers_to_ignore = {"weigth"}}, "parameters_and_buffers_to_ignore names \"weigth\""},
      {{.sparse_parameters = {"weigth"}}, "sparse_parameters names \"weigth\""},
      {{},
       "the module has no parameter that needs",
       [](nn::Linear& net) {
         for (const at::Tensor& parameter : net->parameters()) parameter.requires_grad_(false);
       }},
      {{}, "there is no module", [](nn::Linear& net) { net = nullptr; }},
      {{},
       "the buffer \"links\" has the layout Sparse, but ranks share dense tensors; name it in "
       "parameters_and_buffers_to_ignore",
       [](nn::Linear& net) { net->register_buffer("links", torch::eye(2).to_sparse()); }},
      {{},
       "the buffer \"links\" has the layout SparseCsr",
       [](nn::Linear& net) { net->register_buffer("links", torch::eye(2).to_sparse_csr()); }},
      {{},
       "the buffer \"mean\" has elements that are one place in memory, as after expand(); name it in "
       "parameters_and_buffers_to_ignore, or clone() it",
       [](nn::Linear& net) { net->register_buffer("mean", torch::zeros({1}).expand({3})); }},
      {{},
       "the parameter \"scale\" has elements that are one place",
       [](nn::Linear& net) { net->register_parameter("scale", torch::ones({1}).expand({3})); }},
      {{},
       "the parameter \"scale\" was computed from other tensors, so its gradient would go on to those. "
       "Register its detach().requires_grad_()",
       [](nn::Linear& net) { net->register_parameter("scale", net->bias * 2); }},
  };
  for (const int size : {2, 3}) {
    run_world(size, [&](int rank) {
      for (const int refusing : {0, size - 1}) {
        for (const Case& each : cases) {
          const bool refuses = rank == refusing;
          nn::Linear net(2, 2);
          if (refuses) each.changes(net);
          const std::string by = refuses ? "" : cat("rank ", refusing, " has refused: ");
          expect_error(
              [&] { DistributedDataParallel model(net, refuses ? each.options : DataParallelOptions{}); },
              {cat("rank ", rank, ": DistributedDataParallel: ", by, each.why)});
          tensor::barrier();  // the group lives on
        }
      }
      // What is no refusal, but went wrong on one rank, ends the group.
      DataParallelOptions options;
      if (rank == size - 1)
        options.gradient_slot = [](const at::Tensor&) -> std::unique_ptr<GradientSlot> { throw 42; };
      const auto wrap = [&] { DistributedDataParallel model(nn::Linear(2, 2), options); };
      if (rank == size - 1) {
        EXPECT_THROW(wrap(), int);
      } else {
        expect_error<RemoteError>(wrap, {cat("rank ", size - 1), "construction", "no std::exception"});
      }
    });
  }
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

    DistributedDataParallel other(net);
    expect_error([&] { other.register_comm_hook(CommHookPtr()); }, {"register_comm_hook", "null"});
    expect_error([&] { other.register_comm_hook(std::function<HookWork(GradBucket&)>()); },
                 {"register_comm_hook", "empty function"});
    expect_error([&] { fp16_compress_wrapper(nullptr); }, {"fp16_compress_wrapper", "null"});
    expect_error([&] { bf16_compress_wrapper(nullptr); }, {"bf16_compress_wrapper", "null"});
    refused({.gradient_slot = [](const at::Tensor&) { return std::unique_ptr<tensor::GradientSlot>(); }},
            {"gradient_slot", "\"weight\""});
    struct Nowhere : nn::Module {
      Nowhere() { register_parameter("weight", torch::empty({2, 2}, at::kMeta)); }
      at::Tensor forward(const at::Tensor& x) { return x; }
    };
    const auto nowhere = std::make_shared<Nowhere>();
    expect_error([&] { DistributedDataParallel there(nowhere); },
                 {"\"weight\" is on meta", "to(torch::kCPU)"});

    refused({.delay_all_reduce_named_params = {"bias"}}, {"param_to_hook_all_reduce", "together"});
    refused({.delay_all_reduce_named_params = {"bias"}, .param_to_hook_all_reduce = "wait"},
            {"param_to_hook_all_reduce", "wait"});
    refused({.static_graph = true,
             .delay_all_reduce_named_params = {"bias"},
             .param_to_hook_all_reduce = "weight"},
            {"delay_all_reduce_named_params", "static_graph"});
  });
}

TEST(Faults, AModelIsNotTakenApartInItsOwnBackward) {
  run_world(2, [](int) {
    DistributedDataParallel model(nn::Linear(2, 2));
    int asked = 0;
    const auto ask = [&] {
      expect_error([&] { model.remove_autograd_hooks(); }, {"remove_autograd_hooks", "backward pass runs"});
      expect_error([&] { model.update_process_group({}); }, {"update_process_group", "backward pass runs"});
      ++asked;
    };
    model.register_comm_hook([&](GradBucket& bucket) {
      ask();
      const at::Tensor buffer = bucket.buffer();
      return HookWork{tensor::all_reduce(buffer, {.op = ReduceOp::kAvg, .async_op = true}), ask};
    });
    model(ones()).sum().backward();
    EXPECT_EQ(asked, 2);
    EXPECT_TRUE(tensor::all_equal(model->weight.grad(), 1));
    model.update_process_group({});
    model.remove_autograd_hooks();
  });
}

TEST(Faults, GradientsOfAnotherKindOrTooLateAreNamedWithWhatToDo) {
  struct Looks : nn::Module {
    Looks() { table = register_parameter("table", torch::ones({3, 2})); }
    at::Tensor forward(const at::Tensor& i) { return torch::embedding(table, i, -1, false, /*sparse=*/true); }
    at::Tensor table;
  };
  struct Tied : nn::Module {
    Tied() { register_module("words", words); }
    at::Tensor forward(const at::Tensor& i) { return words(i).matmul(words->weight.t()).sum(); }
    nn::Embedding words{nn::EmbeddingOptions(5, 3).sparse(true)};
  };
  run_world(2, [](int rank) {
    const auto at = cat("rank ", rank);
    const auto group = [] { return tensor::new_group({0, 1}); };
    DistributedDataParallel looks(std::make_shared<Looks>(), {.process_group = group()});
    DistributedDataParallel dense(std::make_shared<Two>(),
                                  {.process_group = group(), .sparse_parameters = {"first.weight"}});
    DistributedDataParallel tied(std::make_shared<Tied>(), {.process_group = group()});
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
                                 {at, "\"first.weight\"", "sparse_parameters names it. Leave it out"});
    expect_error<ReductionError>(
        [&] {
          tied(torch::tensor({1, 2})).backward();
        },
        {at, "\"words.weight\"", "its module is an embedding with sparse = true", "sparse = false"});
    expect_error<ReductionError>([&] { late(ones()).sum().backward(); },
                                 {at, "\"first.weight\"", "whose gradient comes last"});
  });
}

TEST(Faults, ABufferThatCanNoLongerBeSharedIsNamedOnEveryRank) {
  run_world(2, [](int rank) {
    const auto wrap = [](const std::shared_ptr<Two>& net, std::vector<std::string> ignored = {}) {
      return DistributedDataParallel(net, {.process_group = tensor::new_group({0, 1}),
                                           .parameters_and_buffers_to_ignore = std::move(ignored)});
    };
    const at::Tensor sparse = torch::eye(2).to_sparse();
    const auto ignoring = std::make_shared<Two>();
    ignoring->register_buffer("links", sparse);
    auto model = wrap(ignoring, {"links"});
    for (int step = 0; step < 2; ++step) model(ones()).sum().backward();

    const std::pair<at::Tensor, std::string> cases[] = {
        {sparse, "the buffer \"links\" has the layout Sparse"},
        {torch::zeros({2, 1}).expand({2, 2}), "the buffer \"links\" has elements that are one place"},
    };
    for (const auto& [links, words] : cases) {
      const auto on_all = std::make_shared<Two>();
      const auto on_one = std::make_shared<Two>();
      auto all = wrap(on_all);
      auto one = wrap(on_one);
      for (auto* const each : {&all, &one}) (*each)(ones()).sum().backward();
      tensor::barrier();
      on_all->register_buffer("links", links);
      expect_error<InvalidArgument>([&] { all(ones()); }, {words});
      if (rank == 1) {
        on_one->register_buffer("links", links);
        expect_error<InvalidArgument>([&] { one(ones()); }, {words});
      } else {
        expect_error<RemoteError>([&] { one(ones()).sum().backward(); }, {"rank 1", words});
      }
    }
  });
}

TEST(Faults, ABufferThatHasAnotherShapeOnOneRankIsNamedThere) {
  run_world(2, [](int rank) {
    auto net = std::make_shared<Two>();
    net->register_buffer("mean", torch::zeros({2}));
    DistributedDataParallel model(net);
    for (int step = 0; step < 2; ++step) {
      net->named_buffers()["mean"].resize_({3 + step});  // on all ranks
      model(ones()).sum().backward();
    }
    tensor::barrier();
    if (rank == 1) net->named_buffers()["mean"].resize_({7});
    const std::vector<std::string> words =
        rank == 1 ? std::vector<std::string>{"buffers of the module have other names, types or shapes",
                                             "rank 1 have changed: \"mean\" has the shape [7], it had [4]"}
                  : std::vector<std::string>{"rank 1 is in broadcast"};  // whose root need not wait for it
    expect_error<Desync>([&] { model(ones()).sum().backward(); }, words);
  });
}

TEST(Faults, ABufferOfAsManyBytesButAnotherKindOnOneRankIsNamedThere) {
  struct Case {
    std::function<void(nn::Module&, int rank)> change;
    std::string words;
  };
  const std::vector<Case> cases = {
      {[](nn::Module& net, int rank) {
         if (rank == 1) net.named_buffers()["count"].set_data(torch::ones({2}, at::kDouble));
       },
       "\"count\" has the type Double, it had Long"},
      {[](nn::Module& net, int rank) {
         if (rank == 1) net.named_buffers()["count"].set_data(torch::ones({2, 1}, at::kLong));
       },
       "\"count\" has the shape [2, 1], it had [2]"},
      {[](nn::Module& net, int rank) { net.register_buffer(cat("of_rank_", rank), torch::ones({3})); },
       "\"of_rank_1\" is new"},
  };
  run_world(2, [&](int rank) {
    for (const Case& each : cases) {
      auto net = std::make_shared<Two>();
      net->register_buffer("count", torch::ones({2}, at::kLong));
      DistributedDataParallel model(net, {.process_group = tensor::new_group({0, 1})});
      model(ones()).sum().backward();
      tensor::barrier();
      each.change(*net, rank);
      const std::vector<std::string> words =
          rank == 1 ? std::vector<std::string>{"buffers of the module have other names, types or shapes",
                                               "rank 1 have changed: " + each.words + ": "}
                    : std::vector<std::string>{"rank 1 is in broadcast"};
      expect_error<Desync>([&] { model(ones()).sum().backward(); }, words);
    }
    // On all ranks alike they may become what they like.
    auto net = std::make_shared<Two>();
    const at::Tensor count = net->register_buffer("count", torch::ones({2}, at::kLong));
    DistributedDataParallel model(net, {.process_group = tensor::new_group({0, 1})});
    count.set_data(torch::full({2, 1}, rank + 0.5, at::kDouble));
    for (int step = 0; step < 2; ++step) model(ones()).sum().backward();
    EXPECT_TRUE(tensor::all_equal(count, 0.5));
  });
}

// Rank 0 runs the first of two models that look the same, and rank 1 the second.
template <typename Make, typename Input>
void expect_told_apart(int rank, const Make& make, const Input& input,
                       const std::vector<std::string>& words) {
  const ProcessGroup group = tensor::new_group({0, 1});
  DistributedDataParallel one(make(), {.process_group = group});
  DistributedDataParallel other(make(), {.process_group = group});
  for (auto* model : {&one, &other}) (*model)(input).sum().backward();
  expect_error<Desync>([&] { (rank == 0 ? one : other)(input).sum().backward(); }, words);
}

TEST(Faults, ModelsOfOneShapeThatRanksReachInAnotherOrderAreToldApart) {
  run_world(2, [](int rank) {
    const auto dense = [] { return std::make_shared<Two>(); };
    expect_told_apart(rank, dense, ones(), {"the sizes of the buffers, or what they are for"});
    const auto sparse = [] { return nn::Embedding(nn::EmbeddingOptions(4, 2).sparse(true)); };
    expect_told_apart(rank, sparse, torch::tensor({1, 2}), {"rank 0 is in", "rank 1 is in"});
    const auto with_buffer = [] {
      auto net = std::make_shared<Two>();
      net->register_buffer("mean", torch::zeros({2}));
      return net;
    };
    expect_told_apart(rank, with_buffer, ones(), {"rank 1 is in broadcast", "what they are for"});
  });
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

TEST(Faults, AModelThatIsGoneLeavesItsModuleAsItWas) {
  run_world(2, [](int rank) {
    nn::Linear net(2, 2);
    {
      DistributedDataParallel model(net);
      model(rank * ones()).sum().backward();
    }
    net->zero_grad();
    net->forward(rank * ones()).sum().backward();
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

TEST(Faults, AModelThatGoesBetweenForwardAndBackwardIsMissedByAllRanks) {
  run_world(2, [](int rank) {
    nn::Linear net(2, 2);
    std::optional<DistributedDataParallel<nn::LinearImpl>> model(std::in_place, net);
    (*model)(ones()).sum().backward();
    const at::Tensor loss = (*model)(ones()).sum();
    const std::vector<std::string> words = {"rank 1", "destroyed between forward and backward", "keep it"};
    if (rank == 1) {
      model.reset();
      EXPECT_EQ(torch::autograd::grad({loss}, {net->weight}, {}, /*retain_graph=*/true)[0].numel(), 4);
      expect_error<ReductionError>([&] { loss.backward({}, true, false, net->parameters()); }, words);
      expect_error<ReductionError>([&] { loss.backward(); }, words);
    } else {
      expect_error<RemoteError>([&] { loss.backward(); }, words);
    }
  });
  run_world(2, [](int rank) {  // of what was evaluated, the gradients are the rank's own then
    nn::Linear net(2, 2);
    at::Tensor loss;
    {
      DistributedDataParallel model(net);
      model.train(false);
      loss = model(rank * ones()).sum();
    }
    loss.backward();
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
    {
      const auto guard = model->no_sync();
      EXPECT_EQ((*model)(ones()).numel(), 2);
      EXPECT_THROW((*model)(torch::ones({1, 7})), c10::Error);  // what the module says of it
    }
    const torch::NoGradGuard no_grad;
    EXPECT_EQ((*model)(ones()).numel(), 2);
  }));
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
