// Which executable a rank runs, and with which arguments.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/launch/exit_codes.h"
#include "lockstep/launch/options.h"
#include "lockstep/launch/worker_environment.h"

namespace lockstep::launch {

struct Program {
  std::string path = {};               // of the executable
  std::vector<std::string> argv = {};  // the first is the program as it was named
};

// Looks the program up (in PATH if it has no slash) and puts Python before it where that is needed. A Python
// script is looked for in the current folder and not in PATH, as python does. kInvalid: there is no such
// program (kExitNotFound). kUnsupported: it cannot be executed (kExitNotExecutable).
Result<Program> resolve_program(const RunOptions& options, const Variables& environment);

}  // namespace lockstep::launch
