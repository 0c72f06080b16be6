// n ranks train bitwise as one process that adds their gradients in the order of ranks. That it is so between
// hosts too, is hosts_test.py.
#include "bitwise.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
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

TEST(BitwiseSkipped, AsOneProcess) {
  // Every gradient is a bucket, so that there are some to skip.
  const DataParallelOptions searched{
      .find_unused_parameters = true, .skip_all_reduce_unused_params = true, .bucket_cap_mb = 1e-6};
  const DataParallelOptions recorded{
      .static_graph = true, .skip_all_reduce_unused_params = true, .bucket_cap_mb = 1e-6};
  for (const int size : {1, 2, 3, 4}) {
    tensor::run_world(size, [&](int) {
      for (const Clear clear : {Clear::kNone, Clear::kZero}) {
        ASSERT_EQ(train_beside_one_process("same_branches", {.options = searched, .clear = clear}), "");
        ASSERT_EQ(train_beside_one_process("one_branch", {.options = recorded, .clear = clear}), "");
      }
    });
  }
}

TEST(BitwiseDelayed, AsOneProcess) {
  const DataParallelOptions some{
      .delay_all_reduce_named_params = {"layers.3.weight", "layers.3.bias", "layers.1.bias"},
      .param_to_hook_all_reduce = "layers.0.weight",
      .bucket_cap_mb = 0.001};
  const DataParallelOptions all{
      .delay_all_reduce_named_params = {"layers.0.weight", "layers.0.bias", "layers.1.weight",
                                        "layers.1.bias", "layers.2.weight", "layers.2.bias",
                                        "layers.3.weight", "layers.3.bias"},
      .param_to_hook_all_reduce = "layers.0.weight"};
  const DataParallelOptions of_cnn{.delay_all_reduce_named_params = {"head.weight", "second.weight"},
                                   .param_to_hook_all_reduce = "first.weight"};
  for (const int size : {1, 2, 3, 4}) {
    tensor::run_world(size, [&](int) {
      ASSERT_EQ(train_beside_one_process("mlp", {.options = some}), "");
      ASSERT_EQ(train_beside_one_process("mlp", {.options = all, .clear = Clear::kZero}), "");
      ASSERT_EQ(train_beside_one_process("cnn", {.options = of_cnn}), "");
    });
  }
}

// Where memfd_create() is refused, below: what goes through shared memory elsewhere goes through sockets.
std::atomic<bool> refuses_memory = false;
std::atomic<bool> has_refused = false;

TEST(BitwiseOverTcp, AsOneProcess) {
  for (const int size : {3, 4}) {
    EXPECT_OK(testing::ProcessWorld(size).run([](const SpawnedRank& rank) {
      refuses_memory = true;
      const WorldOptions options{.without_shared_memory = backend::WithoutSharedMemory::kUseTcp};
      const auto world = init_process_group({.world = options, .environment = rank.environment});
      ASSERT_TRUE(has_refused);
      ASSERT_EQ(train_beside_one_process("mlp", {.steps = 10}), "");
      ASSERT_EQ(train_beside_one_process(
                    "branches", {.options = {.find_unused_parameters = true, .bucket_cap_mb = 0.0001},
                                 .clear = Clear::kZero,
                                 .steps = 10}),
                "");
    }));
  }
}

}  // namespace

bool is_memory_refused() {
  if (refuses_memory) has_refused = true;
  return refuses_memory;
}

}  // namespace lockstep

// In front of libc's.
extern "C" int memfd_create(const char* name, unsigned flags) noexcept {
  if (!lockstep::is_memory_refused()) return static_cast<int>(::syscall(SYS_memfd_create, name, flags));
  errno = EPERM;
  return -1;
}
