// A world whose ranks are processes, for tests: forked from the test program, so that the body may capture.
//
//   EXPECT_OK(ProcessWorld{4}.run([](const SpawnedRank& rank) { EXPECT_EQ(rank.world_size, WorldSize{4});
//   }));
//
// A failed expectation in a rank is printed there and makes the rank fail. Each rank has the environment of a
// launched one, so rendezvous by env:// works in it. Thread safety: run() needs a process with one thread;
// else kUnsupported.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "lockstep/base/text.h"
#include "lockstep/launch/spawn.h"

namespace lockstep::testing {

class ProcessWorld {
 public:
  explicit ProcessWorld(int size, Duration limit = std::chrono::minutes(3)) : size_(size), limit_(limit) {}

  // The first rank that failed, or kTimeout at the limit.
  Status run(const std::function<void(const SpawnedRank&)>& body) const {
    const auto checked = [&body](const SpawnedRank& rank) {
      body(rank);
      return ::testing::Test::HasFailure()
                 ? Status::internal(cat("an expectation failed on rank ", rank.rank))
                 : Status();
    };
    // A rank that stays when the first one has failed may take all of the time.
    return fork_ranks(size_, checked, {.deadline = Clock::steady().in(limit_), .grace = limit_});
  }

 private:
  WorldSize size_;
  Duration limit_;
};

}  // namespace lockstep::testing
