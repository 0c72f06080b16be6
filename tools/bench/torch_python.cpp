#include "tools/bench/torch_python.h"

#include <chrono>
#include <fstream>

#include "lockstep/base/text.h"
#include "lockstep/launch/run_program.h"

namespace lockstep::bench {

Result<std::string> python_with_torch(const tools::CommandContext& context, const std::string& given,
                                      const std::string& peer) {
  std::string python = given;
  if (python.empty()) {
    std::ifstream recorded(context.libexec() / "torch_python");
    std::getline(recorded, python);
  }
  if (python.empty()) python = "python3";
  // Looked for and not imported, which takes seconds.
  const auto found = launch::run_program(
      {python, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"},
      context.clock.in(std::chrono::minutes(1)));
  if (found.ok() && found->succeeded()) return python;
  return Status::unsupported(cat("--against ", peer, " needs a Python with torch, and ", base::quoted(python),
                                 found.ok() ? " has none" : " cannot be run", "; name one with --python"));
}

}  // namespace lockstep::bench
