// `lockstep bench fingerprint`: what the comparison of every operation with every peer's costs.
#pragma once

#include "tools/lockstep/command.h"

namespace lockstep::bench {

// Adds `fingerprint` to the group `lockstep bench`.
void add_fingerprint_bench(CLI::App& bench, tools::CommandContext& context);

}  // namespace lockstep::bench
