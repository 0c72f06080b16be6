// The operations of a chaos test: step k of a seed is the same on every rank, and its result is known.
//
// Thread safety: none. Numbers are small integers, so that every sum is exact in every type.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/backend/backend.h"
#include "lockstep/backend/world.h"

namespace lockstep::chaos {

// The ways in which a step communicates.
enum class Way : std::uint8_t {
  kBarrier,
  kBroadcast,
  kAllReduce,
  kAllReduceShared,   // in memory that the host's ranks share
  kAllReduceStarted,  // several, by start()
  kReduce,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  kMessages,  // each to the next, all at once
};
constexpr int kWays = 12;

struct Step {
  Way way = Way::kBarrier;
  std::size_t count = 1;  // elements; of the largest part, if they are uneven
  bool uneven = false;    // of an operation that has such a form
  DType dtype = DType::kInt32;
  ReduceOp reduce_op = ReduceOp::kSum;
  Rank root = {};
  std::uint32_t salt = 0;  // which numbers
};

Step step_of(std::uint64_t seed, int number, WorldSize size);

// Runs the step and compares its result. A wrong number is kInternal, with a message that begins "wrong".
Status run_step(World& world, Backend& group, const Step& step);
bool is_wrong(const Status& status);

}  // namespace lockstep::chaos
