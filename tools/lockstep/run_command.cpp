#include "tools/lockstep/run_command.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>

#include "lockstep/base/text.h"
#include "lockstep/launch/options.h"
#include "lockstep/launch/run.h"

namespace lockstep::tools {
namespace {

using launch::RunWords;

// An option whose word is kept as it was given.
struct Word {
  const char* names;
  std::string RunWords::*word;
  const char* type;
  const char* description;
};

constexpr auto kPlace = std::to_array<Word>({
    {"--nproc,--nproc-per-node", &RunWords::nproc, "N", "Ranks on this host: a number, auto, cpu or gpu (1)"},
    {"--nnodes", &RunWords::nnodes, "N", "How many hosts (1); the same command runs on each"},
    {"--node-rank", &RunWords::node_rank, "R", "Which of the hosts this is (by arrival)"},
    {"--rdzv-endpoint", &RunWords::rdzv_endpoint, "HOST:PORT", "Where the agents meet: an address of host 0"},
    {"--rdzv-id", &RunWords::rdzv_id, "ID", "The name of the job, the same on all hosts"},
    {"--rdzv-backend", &RunWords::rdzv_backend, "{c10d,static}", "As torchrun; both mean ours"},
    {"--rdzv-conf", &RunWords::rdzv_conf, "K=V,...", "join_timeout=SECONDS,rank=R, as torchrun"},
    {"--master-addr", &RunWords::master_addr, "HOST", "HOST of --rdzv-endpoint"},
    {"--master-port", &RunWords::master_port, "PORT", "PORT of --rdzv-endpoint"},
    {"--local-addr", &RunWords::local_addr, "ADDRESS",
     "What host 0 binds instead of the endpoint's address, with --node-rank"},
    {"--join-timeout", &RunWords::join_timeout, "TIME", "How long to wait for all hosts (5min)"},
    {"--cpu-binding", &RunWords::cpu_binding, "{none,cores,numa}", "What each rank is bound to (none)"},
    {"--role", &RunWords::role, "NAME", "The role of this host's ranks (default)"},
});

constexpr auto kProgram = std::to_array<Word>({
    {"--python", &RunWords::python, "FILE", "The interpreter of Python programs (PYTHON_EXEC, or python3)"},
});

constexpr auto kFailures = std::to_array<Word>({
    {"--max-restarts", &RunWords::max_restarts, "N", "Start all ranks again at most N times (0)"},
    {"--restart-delay", &RunWords::restart_delay, "TIME", "Before the first restart; doubles each time (1s)"},
    {"--monitor-interval", &RunWords::monitor_interval, "TIME",
     "Between looks at the other hosts, at most 500ms (100ms)"},
    {"--signals,--signals-to-handle", &RunWords::signals, "LIST",
     "What is passed on to the ranks (INT,TERM,HUP,QUIT,USR1,USR2)"},
    {"--shutdown-timeout", &RunWords::shutdown_timeout, "TIME", "From SIGTERM to SIGKILL (30s)"},
});

constexpr auto kOutput = std::to_array<Word>({
    {"--log-dir", &RunWords::log_dir, "DIR", "Write each rank's output to files below DIR"},
    {"-r,--redirects", &RunWords::redirects, "STREAMS",
     "To files only: 1 stdout, 2 stderr, 3 both; or 0:1,1:2"},
    {"-t,--tee", &RunWords::tee, "STREAMS", "To files and the console; as --redirects (3 with --log-dir)"},
    {"--local-ranks-filter", &RunWords::local_ranks_filter, "LIST", "Show only these local ranks: 0,1"},
});

constexpr auto kSecurity = std::to_array<Word>({
    {"--secret-file", &RunWords::secret_file, "FILE",
     "The job's secret, for several hosts (LOCKSTEP_SECRET_FILE)"},
});

// torchrun writes each of its options with - and with _: both are understood, one is shown.
std::string underscored(std::string_view names) {
  std::string out;
  for (const std::string& name : base::split(names, ',')) {
    std::string other = name;
    if (name.size() > 2) std::replace(other.begin() + 2, other.end(), '-', '_');
    if (other != name) out += cat(out.empty() ? "" : ",", other);
  }
  return out;
}

void add_words(CLI::App& command, const std::string& group, std::span<const Word> table, RunWords& words) {
  for (const Word& row : table) {
    command.add_option(row.names, words.*row.word, row.description)->type_name(row.type)->group(group);
    const std::string hidden = underscored(row.names);
    if (hidden.empty()) continue;
    const auto set = [&words, row](const std::string& text) {
      std::string& word = words.*row.word;
      if (!word.empty()) throw CLI::ValidationError(cat(row.names, " is given twice, once with _ for -"));
      word = text;
    };
    command.add_option_function<std::string>(hidden, set, row.description)->type_name(row.type)->group("");
  }
}

void add_options(CLI::App& command, CommandContext& context, RunWords& words) {
  add_words(command, "Where", kPlace, words);
  command.add_flag("--standalone", words.standalone, "One host, explicitly")->group("Where");

  add_words(command, "Program", kProgram, words);
  command.add_flag("-m,--module", words.module, "PROGRAM is a Python module")->group("Program");
  command.add_flag("--no-python", words.no_python, "Execute PROGRAM itself, even if its name ends in .py")
      ->group("Program");
  command.add_flag("--no_python", words.no_python, "As --no-python")->group("");
  // One value each: CLI11 would else take the program's arguments for more of them.
  command.add_option("--env", words.env, "Set a variable for every rank; may be repeated")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false)
      ->group("Program");
  command.add_flag("--dry-run", words.dry_run, "Print what each rank would get, and start nothing")
      ->group("Program");

  add_words(command, "Failures", kFailures, words);

  add_words(command, "Output", kOutput, words);
  CLI::Option* prefix = command.add_option_function<std::string>(
      "--prefix", [&words](const std::string& text) { words.prefix = text; },
      "Before each line: {rank}, {local_rank}, {role}, {host}, {node} (\"[rank {rank}] \")");
  prefix->type_name("TEXT")->group("Output");
  context.may_be_empty.push_back(prefix);

  add_words(command, "Security", kSecurity, words);
  command
      .add_flag("--insecure", words.insecure, "Several hosts without a secret, on a network that you trust")
      ->group("Security");
}

// What a prefix command leaves is no error to CLI11; here it is an option that there is not.
Status check_options(const CLI::App& command) {
  const std::vector<std::string> unknown = command.remaining();
  return unknown.empty() ? Status() : Status::invalid(unknown_option(command, unknown.front()));
}

// "Usage: lockstep run [OPTIONS] PROGRAM [ARGUMENTS...]": CLI11 does not know of the program.
class RunFormatter final : public CLI::Formatter {
  std::string make_usage(const CLI::App* app, std::string name) const override {
    const std::string usage = CLI::Formatter::make_usage(app, std::move(name));
    return cat(usage.substr(0, usage.find_last_not_of('\n') + 1), " PROGRAM [ARGUMENTS...]\n");
  }
};

}  // namespace

void add_run_command(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand("run", "Start the ranks of a job on this host, and watch over them");
  command->footer(
      "PROGRAM is executed; one that ends in .py is given to Python. What follows it is its own.\n"
      "  lockstep run --nproc 4 ./train --epochs 3\n"
      "  lockstep run --nproc 4 --nnodes 2 --rdzv-endpoint node0:29400 --secret-file job.secret ./train\n"
      "The exit status is that of the first rank that failed (128 + N for signal N). More: "
      "docs/launching.md");
  command->prefix_command();
  command->formatter(std::make_shared<RunFormatter>());
  auto words = std::make_shared<RunWords>();
  add_options(*command, context, *words);
  on_run(*command, context, [words, command, &context]() -> Result<int> {
    LOCKSTEP_TRY(check_options(*command));
    words->command = context.program;
    LOCKSTEP_ASSIGN(const launch::RunOptions options, launch::parse_run_options(*words));
    LOCKSTEP_TRY(context.environment.status());
    return launch::run(options, *context.environment, context.clock);
  });
}

}  // namespace lockstep::tools
