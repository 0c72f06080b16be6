// The `lockstep` command. Each subcommand is registered by one line here; see command.h for the convention.

#include <iostream>
#include <string>
#include <vector>

#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "tools/lockstep/bench_command.h"
#include "tools/lockstep/command.h"
#include "tools/lockstep/completion_command.h"
#include "tools/lockstep/doctor_command.h"
#include "tools/lockstep/run_command.h"
#include "tools/lockstep/secret_command.h"
#include "tools/lockstep/store_command.h"
#include "tools/lockstep/version.h"

namespace lockstep::tools {
namespace {

int run_main(std::vector<std::string> arguments) {
  CommandContext context{.environment = Environment::read()};
  std::error_code error;
  context.executable = std::filesystem::read_symlink("/proc/self/exe", error);
  if (context.environment.ok()) base::configure_logging(context.environment->log);

  CLI::App app("Lockstep: distributed data-parallel training for C++", "lockstep");
  app.set_version_flag(
      "--version", [&context] { return version_text(context); }, "Print what this build is and exit");
  add_run_command(app, context);
  add_store_command(app, context);
  add_secret_command(app, context);
  add_doctor_command(app, context);
  add_bench_command(app, context);
  add_completion_command(app, context);
  return run_command_line(app, context, std::move(arguments), std::cout, std::cerr);
}

}  // namespace
}  // namespace lockstep::tools

int main(int argc, char** argv) { return lockstep::tools::run_main({argv + 1, argv + argc}); }
