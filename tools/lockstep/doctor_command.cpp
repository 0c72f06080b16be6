#include "tools/lockstep/doctor_command.h"

#include <unistd.h>

#include <iostream>
#include <memory>

#include "lockstep/base/text.h"
#include "lockstep/launch/doctor.h"
#include "lockstep/launch/program.h"
#include "tools/lockstep/version.h"

namespace lockstep::tools {
namespace {

using launch::DoctorReport;

struct DoctorArguments {
  std::string master;
  std::string python = {};
  std::string timeout = "30s";
  bool json = false;
};

DoctorReport::Colour colour_for_stdout(const CommandContext& context) {
  const bool refused = context.environment.ok() && context.environment->all.contains("NO_COLOR");
  return ::isatty(STDOUT_FILENO) == 1 && !refused ? DoctorReport::Colour::kAlways
                                                  : DoctorReport::Colour::kNever;
}

// Of an interpreter that was named, which is to be there; that there is no python3 is a finding.
Status check_python(const std::string& python, const CommandContext& context) {
  if (python.empty() || !context.environment.ok()) return {};
  launch::RunOptions program;
  program.command = {python};
  program.kind = launch::ProgramKind::kDirect;
  const Status found = launch::resolve_program(program, context.environment->all).status();
  return found.ok() ? found : Status::invalid(cat("--python: ", found.message()));
}

Result<int> examine_this_machine(const DoctorArguments& arguments, const CommandContext& context) {
  const auto timeout = base::parse_duration(arguments.timeout);
  if (!timeout || *timeout <= Duration::zero()) {
    return Status::invalid(
        cat("--timeout ", base::quoted(arguments.timeout), " is not a time above zero, such as 10s"));
  }
  LOCKSTEP_TRY(check_python(arguments.python, context));
  launch::DoctorOptions options{.probe_timeout = *timeout};
  if (!arguments.python.empty()) options.python = arguments.python;
  if (!arguments.master.empty()) options.master = arguments.master;

  DoctorReport report = launch::examine(options, context.environment, context.clock);
  report.findings.insert(report.findings.begin(), {version_finding(context), libtorch_finding()});
  std::cout << (arguments.json ? report.json() : report.text(colour_for_stdout(context))) << std::flush;
  return report.health() == launch::Health::kUnusable ? kExitFailure : kExitOk;
}

}  // namespace

void add_doctor_command(CLI::App& app, CommandContext& context) {
  CLI::App* command =
      app.add_subcommand("doctor", "Say what a job will find on this machine, and what to mend");
  command->footer("Exit status: 0 if a job can run here (also with warnings), 1 if something is unusable.");
  auto arguments = std::make_shared<DoctorArguments>();
  command->add_option("--master", arguments->master, "Show how this host reaches HOST or HOST:PORT")
      ->type_name("HOST");
  command->add_option("--python", arguments->python, "The interpreter to ask for torch [python3]")
      ->type_name("PROGRAM");
  command->add_option("--timeout", arguments->timeout, "For each probe [30s]")->type_name("DURATION");
  command->add_flag("--json", arguments->json, "Print the report as JSON");
  on_run(*command, context, [arguments, &context] { return examine_this_machine(*arguments, context); });
}

}  // namespace lockstep::tools
