// `lockstep store`: serves a store on its own, for jobs whose ranks should not depend on rank 0 for it.
#pragma once

#include "tools/lockstep/command.h"

namespace lockstep::tools {

void add_store_command(CLI::App& app, CommandContext& context);

}  // namespace lockstep::tools
