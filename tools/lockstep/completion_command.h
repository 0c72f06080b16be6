// `lockstep completion bash|zsh`: the script that teaches the shell to complete `lockstep`.
//
// The script holds no words of its own: it asks `lockstep completion words`, which reads the tree of
// commands.
#pragma once

#include "tools/lockstep/command.h"

namespace lockstep::tools {

// `app` is the whole command, and outlives the body: completion offers whatever is registered there.
void add_completion_command(CLI::App& app, CommandContext& context);

}  // namespace lockstep::tools
