// Several models, forwards and backward passes at a time: each gradient is the mean of all ranks.
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

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

}  // namespace
}  // namespace lockstep
