// n ranks train bitwise as one process that adds their gradients in the order of ranks. That it is so between
// hosts too, is hosts_test.py.
//
//   ddp_bitwise_test [--steps N] [GoogleTest's arguments]
//
// Every net trains for 50 steps over shared memory, with the default options and those that change the way of
// a gradient; with the other options, and over TCP, for a few, or for N.
#include "bitwise.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <iostream>
#include <string>
#include <vector>

#include "lockstep/tensor/tensor_test_support.h"

namespace lockstep {
namespace {

using testing::Clear;
using testing::train_beside_one_process;
using testing::Training;

constexpr const char* kNets[] = {"mlp",  "cnn", "lstm", "embedding", "gpt", "branches", "sparse_branches",
                                 "mixed"};
bool leaves_some_unused(const std::string& net) { return net.ends_with("branches"); }
int some_steps = 6;  // main()'s

class Bitwise : public ::testing::TestWithParam<const char*> {};

TEST_P(Bitwise, AsOneProcess) {
  const std::string name = GetParam();
  const bool unused = leaves_some_unused(name);
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

TEST_P(Bitwise, AsOneProcessWithTheOtherOptions) {
  const std::string name = GetParam();
  const bool unused = leaves_some_unused(name);
  for (const int size : {1, 2, 3, 4}) {
    tensor::run_world(size, [&](int) {
      const auto train = [&](DataParallelOptions options, int accumulated = 1) {
        options.find_unused_parameters = unused;
        const Training training{.options = options, .steps = some_steps, .accumulated = accumulated};
        ASSERT_EQ(train_beside_one_process(name, training), "");
      };
      if (size != 2 && !unused) train({.static_graph = true, .bucket_cap_mb_list = {0.0001, 0.001}});
      train({.forward_sync_buffers = false, .bucket_cap_mb = 0.001, .first_bucket_cap_mb = 0.0001});
      if (name != "cnn") train({}, 3);  // what moves its buffers under no_sync(), moves each rank's own
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Nets, Bitwise, ::testing::ValuesIn(kNets),
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

TEST(BitwiseStatic, SparseGradientsThatOnlySomeRanksHaveAsOneProcess) {
  for (const int size : {1, 2, 3, 4}) {
    tensor::run_world(size, [&](int) {
      ASSERT_EQ(train_beside_one_process("sparse_branch_by_rank", {.options = {.static_graph = true}}), "");
    });
  }
}

DataParallelOptions delaying_some_of_mlp() {
  return {.delay_all_reduce_named_params = {"layers.3.weight", "layers.3.bias", "layers.1.bias"},
          .param_to_hook_all_reduce = "layers.0.weight",
          .bucket_cap_mb = 0.001};
}

TEST(BitwiseDelayed, AsOneProcess) {
  const DataParallelOptions all{
      .delay_all_reduce_named_params = {"layers.0.weight", "layers.0.bias", "layers.1.weight",
                                        "layers.1.bias", "layers.2.weight", "layers.2.bias",
                                        "layers.3.weight", "layers.3.bias"},
      .param_to_hook_all_reduce = "layers.0.weight"};
  const DataParallelOptions of_cnn{.delay_all_reduce_named_params = {"head.weight", "second.weight"},
                                   .param_to_hook_all_reduce = "first.weight"};
  for (const int size : {1, 2, 3, 4}) {
    tensor::run_world(size, [&](int) {
      ASSERT_EQ(train_beside_one_process("mlp", {.options = delaying_some_of_mlp()}), "");
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
      const auto train = [](const char* name, const Training& training) {
        ASSERT_EQ(train_beside_one_process(name, training), "");
      };
      train("mlp", {});
      for (const char* const name : kNets) {
        const DataParallelOptions searched{.find_unused_parameters = true, .bucket_cap_mb = 0.0001};
        train(name,
              {.options = leaves_some_unused(name) ? searched : DataParallelOptions(), .steps = some_steps});
      }
      train("lstm", {.options = {.static_graph = true, .bucket_cap_mb = 0.001}, .steps = some_steps});
      train("mlp", {.options = delaying_some_of_mlp(), .clear = Clear::kZero, .steps = some_steps});
      train("gpt", {.options = {.gradient_as_bucket_view = false}, .steps = some_steps, .accumulated = 2});
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

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() == 2 && arguments[0] == "--steps") {
    lockstep::some_steps = std::stoi(arguments[1]);
  } else if (!arguments.empty()) {
    std::cerr << "usage: ddp_bitwise_test [--steps N] [GoogleTest's arguments]\n";
    return 2;
  }
  return RUN_ALL_TESTS();
}
