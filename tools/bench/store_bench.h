// `lockstep bench store`: our TcpStore beside torch's, interleaved in one run.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "tools/lockstep/command.h"

namespace lockstep::bench {

struct StoreBenchOptions {
  std::vector<int> clients = {1, 16, 256};
  bool against_torch = false;
  int rounds = 5;  // each measures both sides, in turn first
  Duration round = std::chrono::milliseconds(400);
  std::string json;  // where to write the report; empty: nowhere
};

// Prints a table to `out` and progress to stderr if that is a terminal.
Result<int> bench_store(const StoreBenchOptions& options, const tools::CommandContext& context,
                        std::ostream& out);

// Adds `store` to the group `bench`.
void add_store_bench(CLI::App& bench, tools::CommandContext& context);

}  // namespace lockstep::bench
