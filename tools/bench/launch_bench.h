// `lockstep bench launch`: what starting a job costs, beside the program itself and beside torchrun.
#pragma once

#include "tools/lockstep/command.h"

namespace lockstep::bench {

// Adds `launch` to the group `lockstep bench`.
void add_launch_bench(CLI::App& bench, tools::CommandContext& context);

}  // namespace lockstep::bench
