// n ranks train bitwise as one process that adds their gradients in the order of ranks.
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <string>
#include <vector>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/tensor/tensor_test_support.h"
#include "one_process.h"

namespace lockstep {
namespace {

using tensor::run_world;
using testing::descend;
using testing::difference;
using testing::make_net;
using testing::Net;
using testing::OneProcess;

constexpr int kSteps = 50;

// How gradients are cleared between steps.
enum class Clear { kNone, kZero };

void clear(Net& net, Clear how) {
  for (at::Tensor& parameter : net.parameters()) {
    if (how == Clear::kNone) {
      parameter.mutable_grad().reset();
    } else if (parameter.grad().defined() && !parameter.grad().is_sparse()) {
      parameter.mutable_grad().detach_().zero_();
    } else {
      parameter.mutable_grad().reset();
    }
  }
}

void train(const std::string& name, int rank, int size, const DataParallelOptions& options,
           Clear how = Clear::kNone) {
  torch::set_num_threads(1);
  const std::shared_ptr<Net> net = make_net(name);
  DistributedDataParallel model(net, options);
  OneProcess reference(name, size);
  for (int step = 0; step < kSteps; ++step) {
    clear(*net, how);
    clear(reference.net(), how);
    model(net->batch(rank, step)).backward();
    reference.backward(step);
    if (rank != 0) {  // their own buffers are rank 0's again at the next forward only
      for (const auto& item : net->named_buffers())
        item.value().copy_(reference.net().named_buffers()[item.key()]);
    }
    const std::string found = difference(*net, reference.net());
    ASSERT_EQ(found, "") << name << ", rank " << rank << " of " << size << ", step " << step;
    descend(*net, 0.05);
    descend(reference.net(), 0.05);
  }
}

class Bitwise : public ::testing::TestWithParam<const char*> {};

TEST_P(Bitwise, AsOneProcess) {
  const std::string name = GetParam();
  const bool unused = name == "branches";
  for (const int size : {1, 2, 3, 4}) {
    run_world(size, [&](int rank) {
      train(name, rank, size, {.find_unused_parameters = unused});
      if (size != 3)
        train(name, rank, size, {.find_unused_parameters = unused, .bucket_cap_mb = 0.001}, Clear::kZero);
      if (size == 3)
        train(name, rank, size, {.find_unused_parameters = unused, .gradient_as_bucket_view = false});
      if (size == 3)
        train(name, rank, size, {.find_unused_parameters = unused, .batched_grad_copy = true}, Clear::kZero);
      if (size == 2 && !unused)
        train(name, rank, size, {.static_graph = true, .bucket_cap_mb_list = {0.0001, 0.001}});
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Nets, Bitwise,
                         ::testing::Values("mlp", "cnn", "lstm", "embedding", "gpt", "branches", "mixed"),
                         [](const auto& net) { return std::string(net.param); });

}  // namespace
}  // namespace lockstep
