#include "tools/bench/store_bench.h"

#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "lockstep/base/text.h"
#include "tools/bench/arguments.h"
#include "tools/bench/machine.h"
#include "tools/bench/output.h"
#include "tools/bench/peer_process.h"
#include "tools/bench/spread.h"

namespace lockstep::bench {
namespace {

using nlohmann::json;

// What one side measured in one round.
struct Figures {
  double ops_per_s = 0;
  double p50_us = 0;
  double p99_us = 0;
};

struct Row {
  std::string op;
  int clients = 0;
  std::vector<Figures> ours;
  std::vector<Figures> torch;
};

double median_of(const std::vector<Figures>& rounds, double Figures::*field) {
  std::vector<double> values;
  values.reserve(rounds.size());
  for (const Figures& figures : rounds) values.push_back(figures.*field);
  return range_of(std::move(values)).median;
}

// One ratio per round, of figures that were measured one after the other.
Spread ratio_of(const Row& row) {
  std::vector<double> values;
  for (std::size_t i = 0; i < row.torch.size(); ++i) {
    values.push_back(row.ours[i].ops_per_s / row.torch[i].ops_per_s);
  }
  return range_of(std::move(values));
}

Result<Figures> measure(PeerProcess& side, const std::string& command) {
  LOCKSTEP_ASSIGN(const std::string answer, side.ask(command, Clock::steady().in(std::chrono::minutes(2))));
  std::istringstream in(answer);
  std::string word;
  double operations = 0;
  double seconds = 0;
  Figures figures;
  in >> word >> operations >> seconds >> figures.p50_us >> figures.p99_us;
  if (!in || word != "result" || seconds <= 0) {
    return Status::internal(cat("a helper answered ", base::quoted(answer), " to \"", command, "\""));
  }
  figures.ops_per_s = operations / seconds;
  return figures;
}

class StoreBench {
 public:
  StoreBench(const StoreBenchOptions& options, PeerProcess ours, std::optional<PeerProcess> torch)
      : options_(options), ours_(std::move(ours)), torch_(std::move(torch)) {}

  Result<std::vector<Row>> run() {
    std::vector<Row> rows;
    for (const int clients : options_.clients) {
      LOCKSTEP_TRY(open(clients));
      for (const char* op : {"set", "get", "add", "wait"}) {
        LOCKSTEP_ASSIGN(Row row, run_op(op, clients, cat(op, " ", seconds_per_round())));
        rows.push_back(std::move(row));
      }
      LOCKSTEP_ASSIGN(Row row, run_op("join", clients, cat("join ", clients)));
      rows.push_back(std::move(row));
    }
    show_progress("");
    return rows;
  }

 private:
  double seconds_per_round() const { return std::chrono::duration<double>(options_.round).count(); }

  Status open(int clients) {
    show_progress(cat("connecting ", clients, " clients"));
    const Deadline deadline = Clock::steady().in(std::chrono::minutes(2));
    LOCKSTEP_TRY(ours_.ask(cat("open ", clients), deadline).status());
    if (torch_) LOCKSTEP_TRY(torch_->ask(cat("open ", clients), deadline).status());
    return {};
  }

  // Each round measures both sides, the one first in even rounds, the other in odd ones.
  Result<Row> run_op(const std::string& op, int clients, const std::string& command) {
    Row row{.op = op, .clients = clients, .ours = {}, .torch = {}};
    for (int round = 0; round < options_.rounds; ++round) {
      show_progress(cat(op, ", ", clients, " clients, round ", round + 1, " of ", options_.rounds));
      if (torch_ && round % 2 == 0) LOCKSTEP_TRY(measure_into(*torch_, command, row.torch));
      LOCKSTEP_TRY(measure_into(ours_, command, row.ours));
      if (torch_ && round % 2 == 1) LOCKSTEP_TRY(measure_into(*torch_, command, row.torch));
    }
    return row;
  }

  static Status measure_into(PeerProcess& side, const std::string& command, std::vector<Figures>& rounds) {
    LOCKSTEP_ASSIGN(const Figures figures, measure(side, command));
    rounds.push_back(figures);
    return {};
  }

  const StoreBenchOptions& options_;
  PeerProcess ours_;
  std::optional<PeerProcess> torch_;
};

json row_json(const Row& row) {
  json out = {{"op", row.op},
              {"clients", row.clients},
              {"ops_per_s", median_of(row.ours, &Figures::ops_per_s)},
              {"p50_us", median_of(row.ours, &Figures::p50_us)},
              {"p99_us", median_of(row.ours, &Figures::p99_us)},
              {"peers", json::object()}};
  if (!row.torch.empty()) {
    const Spread ratio = ratio_of(row);
    out["peers"]["torch"] = {{"ops_per_s", median_of(row.torch, &Figures::ops_per_s)},
                             {"ratio", ratio.median},
                             {"ratio_low", ratio.low},
                             {"ratio_high", ratio.high}};
  }
  return out;
}

void print_table(const std::vector<Row>& rows, std::ostream& out) {
  const auto cell = [&out](const std::string& text, int width) { out << std::setw(width) << text; };
  cell("clients", 7);
  cell("op", 6);
  for (const char* title : {"ops/s", "p50 us", "p99 us"}) cell(title, 12);
  const bool beside = !rows.empty() && !rows.front().torch.empty();
  if (beside) {
    for (const char* title : {"torch ops/s", "p50 us", "p99 us"}) cell(title, 12);
    cell("ratio", 8);
    cell("low-high", 14);
  }
  out << '\n';
  for (const Row& row : rows) {
    cell(cat(row.clients), 7);
    cell(row.op, 6);
    for (const auto& side : {row.ours, row.torch}) {
      if (side.empty()) continue;
      cell(rounded(median_of(side, &Figures::ops_per_s), 0), 12);
      cell(rounded(median_of(side, &Figures::p50_us), 1), 12);
      cell(rounded(median_of(side, &Figures::p99_us), 1), 12);
    }
    if (beside) {
      const Spread ratio = ratio_of(row);
      cell(rounded(ratio.median, 2), 8);
      cell(cat(rounded(ratio.low, 2), "-", rounded(ratio.high, 2)), 14);
    }
    out << '\n';
  }
}

}  // namespace

Result<int> bench_store(const StoreBenchOptions& options, const tools::CommandContext& context,
                        std::ostream& out) {
  LOCKSTEP_TRY(check_writable(options.json));
  LOCKSTEP_ASSIGN(const auto our_program, context.helper("lockstep_store_peer"));
  LOCKSTEP_ASSIGN(auto ours, PeerProcess::start(our_program));
  LOCKSTEP_ASSIGN(const auto our_version, ours.ask("version", Clock::steady().in(std::chrono::minutes(1))));
  json versions = {{"lockstep", our_version}};
  std::optional<PeerProcess> torch;
  if (options.against_torch) {
    LOCKSTEP_ASSIGN(const auto torch_program, context.helper("torch_store_peer"));
    LOCKSTEP_ASSIGN(auto started, PeerProcess::start(torch_program));
    torch.emplace(std::move(started));
    LOCKSTEP_ASSIGN(const auto version, torch->ask("version", Clock::steady().in(std::chrono::minutes(1))));
    versions["torch"] = version;
  }
  LOCKSTEP_ASSIGN(const auto rows, StoreBench(options, std::move(ours), std::move(torch)).run());
  print_table(rows, out);
  json report = {{"machine", machine_json()}, {"versions", versions}, {"rows", json::array()}};
  for (const Row& row : rows) report["rows"].push_back(row_json(row));
  LOCKSTEP_TRY(write_report(options.json, report.dump(2) + "\n"));
  return tools::kExitOk;
}

void add_store_bench(CLI::App& bench, tools::CommandContext& context) {
  CLI::App* command = bench.add_subcommand("store", "Operations per second and latencies of the TCP store");
  command->footer(
      "set is measured in batches of 64 ended by one round trip, since neither store waits for the answer "
      "to\n"
      "one set. wait: pairs of clients that release each other. join: from the first connect until the last\n"
      "client has passed a barrier. Each round measures both stores; the ratio is that of one round (above "
      "1\n"
      "where ours is faster), its median, lowest and highest are shown. Every answer is checked.");
  struct Arguments {
    std::string clients = "1,16,256";
    std::string against;
    std::string round = "400ms";
    StoreBenchOptions options;
  };
  auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("--clients", arguments->clients,
                   "How many, each with a thread and a connection (1,16,256)")
      ->type_name("LIST");
  command->add_option("--against", arguments->against, "What to compare with: torch")->type_name("PEER");
  tools::add_integer<int>(*command, "--rounds", arguments->options.rounds,
                          "How often each figure is measured (5)", {1, 1000});
  command->add_option("--round", arguments->round, "How long each measurement takes (400ms)")
      ->type_name("DURATION");
  command->add_option("--json", arguments->options.json, "Write the report there as well")->type_name("FILE");
  tools::on_run(*command, context, [arguments, &context]() -> Result<int> {
    StoreBenchOptions options = arguments->options;
    LOCKSTEP_ASSIGN(options.clients, parse_counts("--clients", arguments->clients));
    if (!arguments->against.empty() && arguments->against != "torch") {
      return Status::invalid(
          cat("--against ", base::quoted(arguments->against), " is unknown; torch is known"));
    }
    options.against_torch = arguments->against == "torch";
    const auto round = base::parse_duration(arguments->round);
    if (!round || *round <= Duration::zero()) {
      return Status::invalid(
          cat("--round ", base::quoted(arguments->round), " is not a duration such as 400ms"));
    }
    options.round = *round;
    return bench_store(options, context, std::cout);
  });
}

}  // namespace lockstep::bench
