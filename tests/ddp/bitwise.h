// Training on many ranks beside one process that adds their gradients in the order of ranks.
#pragma once

#include <string>

#include "lockstep/ddp/options.h"

namespace lockstep::testing {

// How gradients are cleared between steps.
enum class Clear { kNone, kZero };

struct Training {
  DataParallelOptions options = {};
  Clear clear = Clear::kNone;
  int steps = 50;
  int accumulated = 1;  // batches in each step, all but the last under no_sync()
};

// On every rank of the default group: trains the net of that name (nets.h). "" if every gradient, parameter
// and buffer is bitwise that of the one process after each step, else where it is not.
std::string train_beside_one_process(const std::string& net, const Training& training);

}  // namespace lockstep::testing
