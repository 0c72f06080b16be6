// `lockstep bench ddp`: a step of data parallel training beside plain training and torch's own, interleaved
// in one run.
#pragma once

#include <iosfwd>

#include "lockstep/base/status.h"
#include "tools/bench/training_options.h"
#include "tools/lockstep/command.h"

namespace lockstep::bench {

// Prints a table to `out`, a row as soon as it is measured, and progress to stderr if that is a terminal.
Result<int> bench_training(const TrainingOptions& options, const tools::CommandContext& context,
                           std::ostream& out);

// Adds the command to the group `bench`.
void add_training_bench(CLI::App& bench, tools::CommandContext& context);

}  // namespace lockstep::bench
