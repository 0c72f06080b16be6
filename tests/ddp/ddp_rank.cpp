// One rank of the tests that are written in Python.
//
//   ddp_rank --bitwise N     hosts_test.py: trains every net of nets.h in every way beside one process, for N
//                            steps, and says on each rank whether the bits are the same
//   ddp_rank --killed VICTIM STEP US
//                            kills.py: trains until rank VICTIM kills itself, so many microseconds after a
//                            step has begun, and says on each other rank whom it heard of
#include <sys/time.h>
#include <torch/utils.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <string>

#include "bitwise.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/groups.h"
#include "lockstep/tensor/init.h"
#include "one_process.h"

namespace {

int compare_bits(int steps) {
  for (const std::string& net : lockstep::testing::nets_to_train()) {
    const std::string found =
        lockstep::testing::train_beside_one_process(net, lockstep::testing::ways_to_train(net), steps);
    if (found.empty()) continue;
    std::cerr << found << "\n";
    return 1;
  }
  std::cout << "rank " << lockstep::get_rank() << " of " << lockstep::get_world_size() << ", local rank "
            << lockstep::get_node_local_rank() << ": the same bits" << std::endl;
  return 0;
}

std::int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

void die(int) {
  std::array<char, 64> text;
  const int size = std::snprintf(text.data(), text.size(), "died at %lld\n", static_cast<long long>(now()));
  if (::write(STDOUT_FILENO, text.data(), static_cast<std::size_t>(size)) == size)
    ::kill(::getpid(), SIGKILL);
}

int train_until_killed(int victim, int last_step, int micros) {
  const int rank = lockstep::get_rank();
  torch::set_num_threads(1);
  try {
    const auto net = lockstep::testing::make_net("cnn");
    lockstep::DistributedDataParallel model(net, {.bucket_cap_mb = 0.002});
    for (int step = 0;; ++step) {
      if (rank == victim && step == last_step) {
        ::signal(SIGALRM, die);
        const itimerval at{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = micros}};
        if (::setitimer(ITIMER_REAL, &at, nullptr) != 0) return 1;
      }
      net->zero_grad(step % 2 == 0);
      model(net->batch(rank, step)).backward();
      lockstep::testing::descend(*net, 0.05);
    }
  } catch (const lockstep::PeerDied& error) {
    std::cout << "rank " << rank << " heard of rank " << error.peer().value_or(lockstep::Rank{-1}).value
              << " at " << now() << std::endl;
    return 0;
  }
}

}  // namespace

int main(int count, char** words) {
  const auto world = lockstep::init_process_group();
  if (count == 3) return compare_bits(std::stoi(words[2]));
  lockstep::barrier();  // all have joined: a death before that is another matter
  return train_until_killed(std::stoi(words[2]), std::stoi(words[3]), std::stoi(words[4]));
}
