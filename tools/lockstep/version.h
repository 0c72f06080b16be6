// What this build of the command is, and what it runs with.
#pragma once

#include <string>

#include "lockstep/launch/doctor.h"
#include "tools/lockstep/command.h"

namespace lockstep::tools {

// For --version: one line per part.
std::string version_text(const CommandContext& context);
// The same as the first line of the doctor's report.
launch::Finding version_finding(const CommandContext& context);
// The libtorch that the programs of this build link, which Python need not have.
launch::Finding libtorch_finding();

}  // namespace lockstep::tools
