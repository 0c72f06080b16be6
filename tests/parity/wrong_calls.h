// The wrong calls of collective_parity.py, on our side (wrong_calls.py has the other).
#pragma once

#include <string>

#include "lockstep/tensor/process_group.h"

namespace lockstep {

struct WrongCall {
  std::string name;
  int rank;
  int size;
  ProcessGroup all;   // not the default group, but of the same ranks
  ProcessGroup pair;  // the first and the last
};

// Throws what the call throws.
void run_wrong(const WrongCall& call);

}  // namespace lockstep
