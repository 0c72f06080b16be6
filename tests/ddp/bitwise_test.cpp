// n ranks train bitwise as one process that adds their gradients in the order of ranks: every net, in every
// way. That it is so between hosts too, is hosts_test.py.
//
//   ddp_bitwise_test [--steps N] [GoogleTest's arguments]
//
// Over shared memory for 50 steps; over TCP for a few, or for N.
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

constexpr int kSteps = 50;
int steps_over_tcp = 6;  // main()'s

void train_in_every_way(const std::string& net, int steps) {
  ASSERT_EQ(testing::train_beside_one_process(net, testing::ways_to_train(net), steps), "");
}

class Bitwise : public ::testing::TestWithParam<std::string> {};

TEST_P(Bitwise, AsOneProcess) {
  for (const int size : {1, 2, 3, 4}) {
    tensor::run_world(size, [](int) { train_in_every_way(GetParam(), kSteps); });
  }
}

// Where memfd_create() is refused, below: what goes through shared memory elsewhere goes through sockets.
std::atomic<bool> refuses_memory = false;
std::atomic<bool> has_refused = false;

TEST_P(Bitwise, AsOneProcessOverTcp) {
  for (const int size : {2, 3, 4}) {
    EXPECT_OK(testing::ProcessWorld(size).run([](const SpawnedRank& rank) {
      refuses_memory = true;
      const WorldOptions options{.without_shared_memory = backend::WithoutSharedMemory::kUseTcp};
      const auto world = init_process_group({.world = options, .environment = rank.environment});
      ASSERT_TRUE(has_refused);
      train_in_every_way(GetParam(), steps_over_tcp);
    }));
  }
}

INSTANTIATE_TEST_SUITE_P(Nets, Bitwise, ::testing::ValuesIn(testing::nets_to_train()),
                         [](const auto& net) { return net.param; });

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
    lockstep::steps_over_tcp = std::stoi(arguments[1]);
  } else if (!arguments.empty()) {
    std::cerr << "usage: ddp_bitwise_test [--steps N] [GoogleTest's arguments]\n";
    return 2;
  }
  return RUN_ALL_TESTS();
}
