// `lockstep bench all_reduce` and the like: an operation of the communication core beside gloo's and MPI's,
// interleaved in one run.
#pragma once

#include <iosfwd>

#include "lockstep/base/status.h"
#include "tools/bench/collective_options.h"
#include "tools/lockstep/command.h"

namespace lockstep::bench {

// Prints a table to `out`, a row as soon as it is measured, and progress to stderr if that is a terminal.
Result<int> bench_collective(const CollectiveOptions& options, const tools::CommandContext& context,
                             std::ostream& out);

// Adds a command for each operation to the group `bench`.
void add_collective_benches(CLI::App& bench, tools::CommandContext& context);

}  // namespace lockstep::bench
