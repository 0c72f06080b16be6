// What one rank of a chaos test is told: the operations to run, and the fault to inject. All ranks of a world
// get the same plan.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/backend/world.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/transport/link/faulty_calls.h"

namespace lockstep::chaos {

struct Plan {
  std::uint64_t seed = 1;  // of the operations
  int steps = 100;
  std::string fault = "none";          // by name: faults.h
  std::vector<Rank> victims = {};      // who injects it
  int step = 0;                        // in which step it happens; -1 while joining, `steps` while leaving
  std::chrono::microseconds delay{0};  // so long after the step has begun
  Duration slow = std::chrono::milliseconds(20);  // of fault "slow": what each step of the victims takes more
  Duration stall_after = std::chrono::seconds(5);
  Duration timeout = std::chrono::seconds(60);  // of an operation
  backend::MemoryChecks memory_checks = backend::MemoryChecks::kOff;
  backend::WithoutSharedMemory without_shared_memory = backend::WithoutSharedMemory::kFail;
  backend::Privacy privacy = backend::Privacy::kIntegrity;
  transport::link::LinkFaults links = {};  // of fault "links", on the victims
  std::size_t largest = 1'000'000;         // elements of a step
  Bytes too_much = Bytes::gib(1);          // of shared memory: more than there is
  Bytes heap_capacity = WorldOptions{}.heap_capacity;

  bool is_victim(Rank rank) const;
  static Result<Plan> parse(int argc, char** argv);
};

}  // namespace lockstep::chaos
