// n ranks train bitwise as one process that adds their gradients in the order of ranks. That it is so between
// hosts too, is hosts_test.py.
#include "bitwise.h"

#include <gtest/gtest.h>

#include <string>

#include "lockstep/tensor/tensor_test_support.h"

namespace lockstep {
namespace {

using testing::Clear;
using testing::train_beside_one_process;
using testing::Training;

class Bitwise : public ::testing::TestWithParam<const char*> {};

TEST_P(Bitwise, AsOneProcess) {
  const std::string name = GetParam();
  const bool unused = name == "branches";
  for (const int size : {1, 2, 3, 4}) {
    tensor::run_world(size, [&](int) {
      const auto train = [&](DataParallelOptions options, Clear clear = Clear::kNone) {
        options.find_unused_parameters = unused;
        ASSERT_EQ(train_beside_one_process(name, {.options = options, .clear = clear}), "");
      };
      train({});
      if (size != 3) train({.bucket_cap_mb = 0.001}, Clear::kZero);
      if (size == 3) train({.gradient_as_bucket_view = false});
      if (size == 3) train({.batched_grad_copy = true}, Clear::kZero);
      if (size == 2 && !unused) train({.static_graph = true, .bucket_cap_mb_list = {0.0001, 0.001}});
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Nets, Bitwise,
                         ::testing::Values("mlp", "cnn", "lstm", "embedding", "gpt", "branches", "mixed"),
                         [](const auto& net) { return std::string(net.param); });

}  // namespace
}  // namespace lockstep
