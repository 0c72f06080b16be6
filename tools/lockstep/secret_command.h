// `lockstep secret FILE`: makes the 0600 secret file of a job that no launcher of ours starts.
#pragma once

#include "tools/lockstep/command.h"

namespace lockstep::tools {

void add_secret_command(CLI::App& app, CommandContext& context);

}  // namespace lockstep::tools
