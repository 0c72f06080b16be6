// A rank that is killed at a random point of a training loop: every other rank names it, nobody hangs, and
// nothing is left. kills.py runs it many times (`make chaos`), then also with 8 ranks; between hosts that is
// ddp_rank.cpp.
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <torch/utils.h>

#include <array>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <random>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/tensor/tensor_test_support.h"
#include "one_process.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

struct Plan {
  int size;
  int victim;
  int step;  // in which the clock of the death is started
  std::chrono::microseconds delay;
};

// What the ranks tell the test.
struct Heard {
  std::atomic<std::int64_t> died = 0;  // steady clock, nanoseconds
  std::atomic<std::int64_t> last = 0;  // when the last of the others had heard of it
  std::atomic<int> by = 0;
};
Heard* heard = nullptr;

std::int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

void die(int) {
  heard->died = now();
  ::kill(::getpid(), SIGKILL);
}

void die_in(std::chrono::microseconds delay) {
  ::signal(SIGALRM, die);
  itimerval at{};
  at.it_value.tv_usec = std::max<std::int64_t>(delay.count(), 1);
  ASSERT_EQ(::setitimer(ITIMER_REAL, &at, nullptr), 0);
}

// Trains until somebody dies.
void train(int rank, const Plan& plan) {
  if (rank == plan.victim && plan.step == 0) die_in(plan.delay);
  torch::set_num_threads(1);
  const auto net = testing::make_net(plan.size == 3 ? "cnn" : "mlp");
  DistributedDataParallel model(net, {.bucket_cap_mb = 0.002});
  for (int step = 0;; ++step) {
    if (rank == plan.victim && step == plan.step && step > 0) die_in(plan.delay);
    net->zero_grad(step % 2 == 0);
    model(net->batch(rank, step)).backward();
    testing::descend(*net, 0.05);
  }
}

bool next_operation_names(int victim) {
  try {
    tensor::barrier();
    ADD_FAILURE() << "a group that has failed still works";
  } catch (const PeerDied& error) {
    if (error.peer() == Rank{victim}) return true;
    ADD_FAILURE() << error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  return false;
}

void survive(int rank, const Plan& plan) {
  try {
    train(rank, plan);
  } catch (const PeerDied& error) {
    std::int64_t last = heard->last;
    while (last < now() && !heard->last.compare_exchange_weak(last, now())) continue;
    EXPECT_EQ(error.peer(), Rank{plan.victim}) << error.what();
    if (error.peer() == Rank{plan.victim} && next_operation_names(plan.victim)) ++heard->by;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << rank << ": " << error.what();
  }
}

std::size_t descriptors() {
  const std::filesystem::directory_iterator begin("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator()));
}

TEST(Kills, AreNamedByEveryRankAndLeaveNothing) {
  static unsigned count = 0;  // over repetitions of the test
  const auto seed = static_cast<unsigned>(::testing::UnitTest::GetInstance()->random_seed());
  void* const shared =
      ::mmap(nullptr, sizeof(Heard), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  std::vector<int> sizes = {2, 3, 4};
  if (GTEST_FLAG_GET(repeat) != 1) sizes.push_back(8);
  for (const int size : sizes) {
    std::mt19937 random(1000 * seed + ++count);
    const auto draw = [&](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };
    const Plan plan{size, draw(size), draw(8), std::chrono::microseconds(draw(6000))};
    heard = new (shared) Heard;
    const std::size_t before = descriptors();
    const Status status = testing::ProcessWorld(size, 60s).run([&](const SpawnedRank& rank) {
      ::signal(SIGTERM, SIG_IGN);  // who starts ranks ends the others when the first has failed
      const auto world = init_process_group({.environment = rank.environment});
      tensor::barrier();  // all have joined: a death before that is another matter (chaos, kill_join)
      survive(rank.rank.value, plan);
    });
    EXPECT_THAT(status.message(), ::testing::HasSubstr(cat("rank ", plan.victim)));
    EXPECT_THAT(status.message(), ::testing::HasSubstr("SIGKILL"));
    EXPECT_EQ(heard->by, size - 1);
    EXPECT_EQ(descriptors(), before);
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a process is left";
    std::cout << "kill: world " << size << ", rank " << plan.victim << ", step " << plan.step << " and "
              << plan.delay.count() << " us; heard after " << (heard->last - heard->died) / 1000 << " us\n";
  }
  ::munmap(shared, sizeof(Heard));
}

}  // namespace
}  // namespace lockstep
