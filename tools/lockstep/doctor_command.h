// `lockstep doctor`: looks at this machine and says what a job will find here.
#pragma once

#include "tools/lockstep/command.h"

namespace lockstep::tools {

void add_doctor_command(CLI::App& app, CommandContext& context);

}  // namespace lockstep::tools
