// 02: a program that starts its own ranks, without the launcher.
//
// Run:
//   build/release/examples/02_own_ranks
//
// Prints (the order of the first four lines differs):
//   rank 0 of 4 integrates from 0.00 to 0.25
//   rank 1 of 4 integrates from 0.25 to 0.50
//   rank 2 of 4 integrates from 0.50 to 0.75
//   rank 3 of 4 integrates from 0.75 to 1.00
//   pi is about 3.141593
//   every rank ended well
//
// With --fail 2, rank 2 returns an error; the others are stopped, and the error comes back to the program,
// which exits with 1:
//   the ranks failed: ... rank 2 was told to fail

#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/store/rendezvous.h"

namespace {

constexpr int kRanks = 4;
constexpr int kSlices = 1'000'000;

std::string fixed(double value, int digits) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

// The integral of 4 / (1 + x^2) from 0 to 1 is pi; each rank takes its part of the way.
double integrate(double from, double to) {
  const double width = (to - from) / kSlices;
  double sum = 0;
  for (int i = 0; i < kSlices; ++i) {
    const double x = from + (i + 0.5) * width;
    sum += 4 / (1 + x * x) * width;
  }
  return sum;
}

// Runs in a process of its own for each rank.
lockstep::Status work(const lockstep::SpawnedRank& self) {
  if (!self.arguments.empty() && self.arguments[0] == lockstep::cat(self.rank)) {
    return lockstep::Status::aborted(lockstep::cat("rank ", self.rank, " was told to fail"));
  }
  LOCKSTEP_ASSIGN(const auto world, lockstep::rendezvous({}, self.environment));
  const double from = double(self.rank.value) / self.world_size.value;
  const double to = double(self.rank.value + 1) / self.world_size.value;
  std::cout << lockstep::cat("rank ", self.rank, " of ", self.world_size, " integrates from ", fixed(from, 2),
                             " to ", fixed(to, 2), "\n")
            << std::flush;

  const std::string part = fixed(integrate(from, to), 12);
  LOCKSTEP_TRY(world.store->queue_push("parts", lockstep::bytes_of(part)));
  if (self.rank.value != 0) return {};
  double pi = 0;
  for (int i = 0; i < self.world_size.value; ++i) {
    LOCKSTEP_ASSIGN(const auto bytes, world.store->queue_pop("parts"));
    pi += std::stod(std::string(lockstep::text_of(bytes)));
  }
  std::cout << "pi is about " + fixed(pi, 6) + "\n" << std::flush;
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  // In the process of a rank this runs work() and does not return.
  const lockstep::Spawner spawner(argc, argv, {{"work", work}});

  std::vector<std::string> arguments;
  if (argc == 3 && std::string(argv[1]) == "--fail") {
    arguments.emplace_back(argv[2]);
  } else if (argc != 1) {
    std::cerr << "Usage: 02_own_ranks [--fail RANK]\n";
    return 2;
  }
  const lockstep::Status status = spawner.spawn("work", lockstep::WorldSize{kRanks}, arguments);
  if (status.ok()) {
    std::cout << "every rank ended well\n";
    return 0;
  }
  std::cerr << "the ranks failed: " << status.message() << "\n";
  return status.code() == lockstep::Code::kInvalid ? 2 : 1;
}
