#include "tools/lockstep/run_command.h"

#include <memory>

#include "lockstep/base/text.h"
#include "lockstep/launch/options.h"
#include "lockstep/launch/run.h"

namespace lockstep::tools {
namespace {

using launch::RunWords;

// torchrun writes each of its options with - and with _.
std::string both(const std::string& name) {
  std::string underscored = name;
  for (std::size_t i = 2; i < underscored.size(); ++i) {
    if (underscored[i] == '-') underscored[i] = '_';
  }
  return underscored == name ? name : name + "," + underscored;
}

void add_place_options(CLI::App& command, RunWords& words) {
  const std::string group = "Where";
  command
      .add_option("--nproc," + both("--nproc-per-node"), words.nproc,
                  "Ranks on this host: N, auto, cpu or gpu (1)")
      ->type_name("N")
      ->group(group);
  command.add_option("--nnodes", words.nnodes, "How many hosts (1); the same command runs on each")
      ->type_name("N")
      ->group(group);
  command.add_option(both("--node-rank"), words.node_rank, "Which of the hosts this is (by arrival)")
      ->type_name("R")
      ->group(group);
  command
      .add_option(both("--rdzv-endpoint"), words.rdzv_endpoint, "Where the agents meet: an address of host 0")
      ->type_name("HOST:PORT")
      ->group(group);
  command.add_option(both("--rdzv-id"), words.rdzv_id, "The name of the job, the same on all hosts")
      ->type_name("ID")
      ->group(group);
  command
      .add_option(both("--rdzv-backend"), words.rdzv_backend, "c10d or static, as torchrun; both mean ours")
      ->type_name("NAME")
      ->group(group);
  command.add_option(both("--rdzv-conf"), words.rdzv_conf, "join_timeout=SECONDS,rank=R, as torchrun")
      ->type_name("K=V,...")
      ->group(group);
  command.add_option(both("--master-addr"), words.master_addr, "HOST of --rdzv-endpoint")
      ->type_name("HOST")
      ->group(group);
  command.add_option(both("--master-port"), words.master_port, "PORT of --rdzv-endpoint")
      ->type_name("PORT")
      ->group(group);
  command.add_option(both("--local-addr"), words.local_addr, "This host's address for the others (by route)")
      ->type_name("ADDRESS")
      ->group(group);
  command.add_flag("--standalone", words.standalone, "One host, explicitly")->group(group);
  command.add_option(both("--join-timeout"), words.join_timeout, "How long to wait for all hosts (5min)")
      ->type_name("TIME")
      ->group(group);
  command.add_option(both("--cpu-binding"), words.cpu_binding, "Bind each rank: none, cores or numa (none)")
      ->type_name("KIND")
      ->group(group);
  command.add_option("--role", words.role, "The role of this host's ranks (default)")
      ->type_name("NAME")
      ->group(group);
}

void add_program_options(CLI::App& command, RunWords& words) {
  const std::string group = "Program";
  command.add_flag("-m,--module", words.module, "PROGRAM is a Python module")->group(group);
  command
      .add_flag(both("--no-python"), words.no_python, "Execute PROGRAM itself, even if its name ends in .py")
      ->group(group);
  command
      .add_option("--python", words.python, "The interpreter of Python programs (PYTHON_EXEC, or python3)")
      ->type_name("FILE")
      ->group(group);
  // One value each: CLI11 would else take the program's arguments for more of them.
  command.add_option("--env", words.env, "Set a variable for every rank; may be repeated")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false)
      ->group(group);
  command.add_flag("--dry-run", words.dry_run, "Print what each rank would get, and start nothing")
      ->group(group);
}

void add_failure_options(CLI::App& command, RunWords& words) {
  const std::string group = "Failures";
  command.add_option(both("--max-restarts"), words.max_restarts, "Start all ranks again at most N times (0)")
      ->type_name("N")
      ->group(group);
  command
      .add_option("--restart-delay", words.restart_delay, "Before the first restart; doubles each time (1s)")
      ->type_name("TIME")
      ->group(group);
  command
      .add_option(both("--monitor-interval"), words.monitor_interval,
                  "Between looks at the other hosts (100ms)")
      ->type_name("TIME")
      ->group(group);
  command
      .add_option("--signals," + both("--signals-to-handle"), words.signals,
                  "What is passed on to the ranks (INT,TERM,HUP,QUIT,USR1,USR2)")
      ->type_name("LIST")
      ->group(group);
  command.add_option(both("--shutdown-timeout"), words.shutdown_timeout, "From SIGTERM to SIGKILL (30s)")
      ->type_name("TIME")
      ->group(group);
}

void add_output_options(CLI::App& command, RunWords& words) {
  const std::string group = "Output";
  command.add_option(both("--log-dir"), words.log_dir, "Write each rank's output to files below DIR")
      ->type_name("DIR")
      ->group(group);
  command
      .add_option("-r,--redirects", words.redirects, "To files only: 1 stdout, 2 stderr, 3 both; or 0:1,1:2")
      ->type_name("STREAMS")
      ->group(group);
  command.add_option("-t,--tee", words.tee, "To files and the console; as --redirects (3 with --log-dir)")
      ->type_name("STREAMS")
      ->group(group);
  command
      .add_option_function<std::string>(
          "--prefix", [&words](const std::string& text) { words.prefix = text; },
          "Before each line: {rank}, {local_rank}, {role}, {host}, {node} (\"[rank {rank}] \")")
      ->type_name("TEXT")
      ->group(group);
  command
      .add_option(both("--local-ranks-filter"), words.local_ranks_filter, "Show only these local ranks: 0,1")
      ->type_name("LIST")
      ->group(group);
}

void add_security_options(CLI::App& command, RunWords& words) {
  const std::string group = "Security";
  command
      .add_option("--secret-file", words.secret_file,
                  "The job's secret, for several hosts (LOCKSTEP_SECRET_FILE)")
      ->type_name("FILE")
      ->group(group);
  command
      .add_flag("--insecure", words.insecure, "Several hosts without a secret, on a network that you trust")
      ->group(group);
}

// CLI11 takes an option that it does not know for the start of the program.
Status check_program(const CLI::App& command, const std::vector<std::string>& words) {
  if (words.empty() || !words.front().starts_with("-")) return {};
  const std::string name = words.front().substr(0, words.front().find('='));
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& known : option->get_lnames()) names.push_back("--" + known);
  }
  const std::string nearest = nearest_name(name, names);
  return Status::invalid(cat("there is no option ", base::quoted(name),
                             nearest.empty() ? "" : cat("; did you mean '", nearest, "'?")));
}

}  // namespace

void add_run_command(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand("run", "Start the ranks of a job on this host, and watch over them");
  command->footer(
      "lockstep run [OPTIONS] PROGRAM [ARGUMENTS...]\n"
      "PROGRAM is executed; one that ends in .py is given to Python. What follows it is its own.\n"
      "  lockstep run --nproc 4 ./train --epochs 3\n"
      "  lockstep run --nproc 4 --nnodes 2 --rdzv-endpoint node0:29400 --secret-file job.secret ./train\n"
      "The exit status is that of the first rank that failed (128 + N for signal N). More: "
      "docs/launching.md");
  command->prefix_command();
  auto words = std::make_shared<RunWords>();
  add_place_options(*command, *words);
  add_program_options(*command, *words);
  add_failure_options(*command, *words);
  add_output_options(*command, *words);
  add_security_options(*command, *words);
  on_run(*command, context, [words, command, &context]() -> Result<int> {
    words->command = command->remaining();
    if (!words->command.empty() && words->command.front() == "--")
      words->command.erase(words->command.begin());
    LOCKSTEP_TRY(check_program(*command, words->command));
    LOCKSTEP_ASSIGN(const launch::RunOptions options, launch::parse_run_options(*words));
    LOCKSTEP_TRY(context.environment.status());
    return launch::run(options, *context.environment, context.clock);
  });
}

}  // namespace lockstep::tools
