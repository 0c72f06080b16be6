// `lockstep run`: starts the ranks of a job. The engine is launch/run.h.
#pragma once

#include "tools/lockstep/command.h"

namespace lockstep::tools {

void add_run_command(CLI::App& app, CommandContext& context);

}  // namespace lockstep::tools
