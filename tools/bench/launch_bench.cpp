#include "tools/bench/launch_bench.h"

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/run_program.h"
#include "tools/bench/arguments.h"
#include "tools/bench/machine.h"
#include "tools/bench/output.h"
#include "tools/bench/spread.h"
#include "tools/bench/torch_python.h"

namespace lockstep::bench {
namespace {

using nlohmann::json;
using tools::CommandContext;

struct LaunchBenchOptions {
  std::string nproc = "2";
  int rounds = 20;
  std::string against = {};
  std::string python = {};
  std::string json_path = {};
};

// Every sample of one round, in milliseconds: neighbours in time, so that a busy moment hits all of them.
struct Round {
  double program = 0;
  double lockstep = 0;
  double torchrun = 0;
};

Result<double> time_once(const std::vector<std::string>& words, const Clock& clock) {
  const auto start = clock.now();
  LOCKSTEP_ASSIGN(const auto output, launch::run_program(words, clock.in(std::chrono::minutes(2))));
  const std::chrono::duration<double, std::milli> took = clock.now() - start;
  if (!output.succeeded()) {
    return Status::internal(
        cat(words.front(), " ", base::exit_text(output.wait_status), ": ", output.first_line()));
  }
  return took.count();
}

// `python` has torchrun; empty if that is not measured.
Result<std::vector<Round>> measure(const LaunchBenchOptions& options, int nproc, const std::string& python,
                                   const CommandContext& context) {
  const std::string ranks = cat(nproc);
  const std::vector<std::string> program = {"true"};
  const std::vector<std::string> ours = {context.executable.string(), "run", "--nproc", ranks, "true"};
  // What the script torchrun executes, which may not be where its Python is.
  const std::vector<std::string> torchrun = {
      python, "-m", "torch.distributed.run", "--nproc-per-node", ranks, "--no-python", "true"};
  std::vector<Round> rounds;
  for (int i = 0; i <= options.rounds; ++i) {
    Round round;
    LOCKSTEP_ASSIGN(round.program, time_once(program, context.clock));
    LOCKSTEP_ASSIGN(round.lockstep, time_once(ours, context.clock));
    if (!python.empty()) {
      LOCKSTEP_ASSIGN(round.torchrun, time_once(torchrun, context.clock));
    }
    if (i > 0) rounds.push_back(round);  // the first one warms the page cache
  }
  return rounds;
}

template <typename Value>
Spread spread_of_each(const std::vector<Round>& rounds, Value value) {
  std::vector<double> values;
  values.reserve(rounds.size());
  for (const Round& round : rounds) values.push_back(value(round));
  return quartiles_of(std::move(values));
}

json row_of(const std::vector<Round>& rounds, int nproc, bool with_torchrun) {
  const Spread program = spread_of_each(rounds, [](const Round& r) { return r.program; });
  const Spread ours = spread_of_each(rounds, [](const Round& r) { return r.lockstep; });
  const Spread more = spread_of_each(rounds, [](const Round& r) { return r.lockstep - r.program; });
  json row = {{"op", "launch"},
              {"nproc", nproc},
              {"program_ms", program.median},
              {"ms", ours.median},
              {"overhead_ms", more.median},
              {"overhead_low_ms", more.low},
              {"overhead_high_ms", more.high},
              {"peers", json::object()}};
  if (with_torchrun) {
    const Spread theirs = spread_of_each(rounds, [](const Round& r) { return r.torchrun; });
    const Spread ratio = spread_of_each(rounds, [](const Round& r) { return r.torchrun / r.lockstep; });
    row["peers"]["torchrun"] = {
        {"ms", theirs.median}, {"ratio", ratio.median}, {"ratio_low", ratio.low}, {"ratio_high", ratio.high}};
  }
  return row;
}

std::string one_digit(double value) { return rounded(value, 1); }

void print_row(const json& row) {
  std::cout << row["nproc"] << " ranks of true: " << one_digit(row["ms"]) << " ms, "
            << one_digit(row["overhead_ms"]) << " ms (" << one_digit(row["overhead_low_ms"]) << " to "
            << one_digit(row["overhead_high_ms"]) << ") more than true itself";
  if (row["peers"].contains("torchrun")) {
    const json& peer = row["peers"]["torchrun"];
    std::cout << "; torchrun " << one_digit(peer["ms"]) << " ms, " << one_digit(peer["ratio"]) << " times ("
              << one_digit(peer["ratio_low"]) << " to " << one_digit(peer["ratio_high"]) << ") as long";
  }
  std::cout << std::endl;
}

json describe_versions(const std::string& python, const CommandContext& context) {
  json versions = json::object();
  const auto ask = [&](const char* name, const std::vector<std::string>& words) {
    const auto answer = launch::run_program(words, context.clock.in(std::chrono::minutes(1)));
    versions[name] = answer.ok() && answer->succeeded() ? answer->first_line() : "unknown";
  };
  ask("lockstep", {context.executable.string(), "--version"});
  if (!python.empty()) ask("torch", {python, "-c", "import torch; print(torch.__version__)"});
  return versions;
}

Result<int> run_launch_bench(const LaunchBenchOptions& options, const CommandContext& context) {
  if (!options.against.empty() && options.against != "torchrun") {
    return Status::invalid(cat("--against ", base::quoted(options.against), " is not known: give torchrun"));
  }
  LOCKSTEP_ASSIGN(const std::vector<int> numbers, parse_counts("--nproc", options.nproc));
  LOCKSTEP_TRY(check_writable(options.json_path));
  std::string python;
  if (!options.against.empty()) {
    LOCKSTEP_ASSIGN(python, python_with_torch(context, options.python, "torchrun"));
  }
  json report = {
      {"machine", machine_json()}, {"versions", describe_versions(python, context)}, {"rows", json::array()}};
  for (const int nproc : numbers) {
    LOCKSTEP_ASSIGN(const std::vector<Round> rounds, measure(options, nproc, python, context));
    report["rows"].push_back(row_of(rounds, nproc, !python.empty()));
    print_row(report["rows"].back());
  }
  LOCKSTEP_TRY(write_report(options.json_path, report.dump(2) + "\n"));
  return tools::kExitOk;
}

}  // namespace

void add_launch_bench(CLI::App& bench, CommandContext& context) {
  CLI::App* command = bench.add_subcommand("launch", "Measure what `lockstep run` adds to a program");
  command->footer(
      "Runs `true` alone, under `lockstep run` and under torchrun, in turns; prints medians and quartiles.\n"
      "A ratio is that of two runs of one round, above 1 where ours is faster.");
  auto options = std::make_shared<LaunchBenchOptions>();
  command->add_option("--nproc", options->nproc, "Numbers of ranks (2)")->type_name("N,...");
  tools::add_integer<int>(*command, "--rounds", options->rounds, "Rounds to measure (20)", {1, 100000});
  command->add_option("--against", options->against, "Measure a peer beside it: torchrun")->type_name("NAME");
  command->add_option("--python", options->python, "The Python whose torchrun is measured")
      ->type_name("FILE");
  command->add_option("--json", options->json_path, "Write the report to FILE")->type_name("FILE");
  on_run(*command, context, [options, &context] { return run_launch_bench(*options, context); });
}

}  // namespace lockstep::bench
