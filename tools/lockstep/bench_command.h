// `lockstep bench`: the group of the benches, each in tools/bench.
#pragma once

#include "tools/lockstep/command.h"

namespace lockstep::tools {

void add_bench_command(CLI::App& app, CommandContext& context);

}  // namespace lockstep::tools
