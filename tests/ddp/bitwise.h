// Training on many ranks beside one process that adds their gradients in the order of ranks.
#pragma once

#include <string>
#include <vector>

#include "lockstep/ddp/options.h"

namespace lockstep::testing {

// How gradients are cleared between steps.
enum class Clear { kNone, kZero };
enum class Hook { kNone, kAllReduce };

// A way to train that promises the bits of one process.
struct Way {
  DataParallelOptions options = {};
  Clear clear = Clear::kNone;
  int accumulated = 1;  // batches in each step, all but the last under no_sync()
  Hook hook = Hook::kNone;
};

// Every way for the net of that name (nets.h): with each option, and some of them together.
std::vector<Way> ways_to_train(const std::string& net);

// On every rank of the default group: trains models of the net side by side, one in each way. "" if every
// gradient, parameter and buffer is bitwise that of the one process after each step, else where it is not.
std::string train_beside_one_process(const std::string& net, const std::vector<Way>& ways, int steps);

// All nets that are trained so.
std::vector<std::string> nets_to_train();

}  // namespace lockstep::testing
