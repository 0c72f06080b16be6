#include "tools/bench/collective_bench.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "tools/bench/bench_sides.h"
#include "tools/bench/collective_report.h"
#include "tools/bench/in_turns.h"
#include "tools/bench/machine.h"
#include "tools/bench/output.h"
#include "tools/bench/scratch_folder.h"

namespace lockstep::bench {
namespace {

using nlohmann::json;

// A batch has as many operations as fit a cache, each on buffers of its own, and at most so many; fewer on a
// side that is slow.
constexpr Bytes kBatchBytes = Bytes::kib(256);
constexpr int kMostIterations = 64;
constexpr double kBatchMicros = 5'000;
constexpr double kRoundMicros = 20'000;  // of one side
constexpr int kFewestBatches = 5;
constexpr int kMostBatches = 50;

class CollectiveBench {
 public:
  CollectiveBench(const CollectiveOptions& options, BenchSides sides, std::ostream& out)
      : options_(options), sides_(std::move(sides)), out_(out) {
    style_.cores = base::usable_cores();
    style_.peers = options.against;
  }

  Result<std::vector<CollectiveRow>> run() {
    print_head();
    std::vector<CollectiveRow> rows;
    for (const Bytes bytes : options_.bytes) {
      for (const std::string& memory : options_.memory) {
        LOCKSTEP_ASSIGN(CollectiveRow row, run_case(bytes, memory));
        show_progress("");
        out_ << table_line(style_, row) << std::flush;
        if (const std::string added = added_by_tensors(row); !added.empty()) notes_.push_back(added);
        rows.push_back(std::move(row));
      }
    }
    print_notes();
    return rows;
  }

 private:
  Result<CollectiveRow> run_case(Bytes bytes, const std::string& memory) {
    CollectiveRow row{.op = options_.op,
                      .nproc = options_.nproc,
                      .hosts = options_.hosts,
                      .bytes = bytes,
                      .dtype = options_.dtype,
                      .peer_dtype = options_.peer_dtype,
                      .memory = memory};
    const std::uint64_t fit = kBatchBytes.value / std::max<std::uint64_t>(bytes.value, 1);
    const TurnsCase what{
        .label = cat(name_of(row.op), " ", bytes, " ", memory),
        .command =
            [&row, this](const BatchPlan& plan, std::size_t side) {
              const bool is_ours = side == 0 || sides_[side]->name() == "tensor";
              const DType type = is_ours ? row.dtype : row.peer_dtype;
              const std::uint64_t elements = row.bytes.value / collective::size_of(row.dtype);
              return cat("run ", name_of(row.op), " ", collective::name_of(type), " ",
                         elements * collective::size_of(type), " ", row.memory, " ", plan.iterations, " ",
                         plan.batches);
            },
        .kind = {.operations = steps_of(row.op), .ends_together = row.op == CollectiveOp::kBarrier},
        .pace = {.batch_micros = kBatchMicros,
                 .round_micros = kRoundMicros,
                 .most_iterations = static_cast<int>(std::clamp<std::uint64_t>(fit, 1, kMostIterations)),
                 .fewest_batches = kFewestBatches,
                 .most_batches = kMostBatches},
        .rounds = options_.rounds};
    LOCKSTEP_ASSIGN(auto measured, measure_in_turns(sides_, what, notes_));
    row.ours = std::move(measured.front().rounds);
    row.peers.assign(measured.begin() + 1, measured.end());
    return row;
  }

  void print_head() {
    out_ << name_of(options_.op);
    if (options_.op != CollectiveOp::kBarrier) out_ << ", " << collective::name_of(options_.dtype);
    if (options_.peer_dtype != options_.dtype)
      out_ << " (peers " << collective::name_of(options_.peer_dtype) << ")";
    out_ << ", " << options_.world().value << " ranks on " << options_.hosts
         << (options_.hosts == 1 ? " host, " : " hosts, ") << style_.cores << " cores, " << options_.rounds
         << " rounds\n"
         << table_head(style_) << std::flush;
  }

  void print_notes() {
    if (options_.world().value > style_.cores) out_ << "* more ranks than cores\n";
    for (const std::string& note : notes_) out_ << note << '\n';
  }

  const CollectiveOptions& options_;
  const BenchSides sides_;
  std::ostream& out_;
  TableStyle style_;
  std::vector<std::string> notes_;
};

}  // namespace

Result<int> bench_collective(const CollectiveOptions& options, const tools::CommandContext& context,
                             std::ostream& out) {
  LOCKSTEP_TRY(context.environment.status());
  LOCKSTEP_TRY(check_writable(options.json));
  LOCKSTEP_TRY(check_writable(options.plot));
  LOCKSTEP_ASSIGN(Interruption interruption, Interruption::make());
  LOCKSTEP_ASSIGN(const ScratchFolder scratch, ScratchFolder::make());
  std::optional<TwoHosts> hosts;
  if (options.hosts == 2) {
    LOCKSTEP_ASSIGN(auto made, TwoHosts::make(options.rate, Clock::steady().in(std::chrono::minutes(1))));
    hosts.emplace(std::move(made));
  }
  const BenchSetting setting{.context = context,
                             .interruption = interruption,
                             .scratch = scratch.path(),
                             .hosts = hosts ? &*hosts : nullptr,
                             .world = options.world(),
                             .nproc = options.nproc,
                             .binding = options.binding,
                             .python = options.python};
  LOCKSTEP_ASSIGN(BenchSides sides, start_sides(setting, options.against, start_side));
  json report = {{"machine", machine_json()}, {"versions", versions_json(sides)}, {"rows", json::array()}};
  LOCKSTEP_ASSIGN(const auto rows, CollectiveBench(options, std::move(sides), out).run());
  for (const CollectiveRow& row : rows) report["rows"].push_back(json_of(row));
  LOCKSTEP_TRY(write_report(options.json, report.dump(2) + "\n"));
  LOCKSTEP_TRY(write_report(options.plot, options.plot.empty() ? "" : svg_of(plot_of(rows))));
  const bool verified =
      std::all_of(rows.begin(), rows.end(), [](const CollectiveRow& row) { return row.verified(); });
  if (!verified) return Status::internal("a result was wrong; what is above is worth nothing");
  return tools::kExitOk;
}

void add_collective_benches(CLI::App& bench, tools::CommandContext& context) {
  for (const CollectiveOp op : kCollectiveOps) {
    CLI::App* command = bench.add_subcommand(std::string(name_of(op)),
                                             cat("Measure ", name_of(op), " beside gloo's and MPI's"));
    command->footer(
        "bytes: the larger of what one rank gives and gets, as nccl-tests counts. resident: in the memory "
        "that\n"
        "ranks of a host share; foreign: anywhere. Each round measures every side, one after the other, and\n"
        "checks every element. us: from the last rank in to the last rank out, median of the rounds. cpu us: "
        "of\n"
        "all ranks together. ratio: the peer's time / ours in one round; median, lowest and highest.");
    auto arguments = std::make_shared<CollectiveArguments>();
    tools::add_integer(*command, "--nproc", arguments->nproc, "Ranks on each host (2)",
                       tools::Range<int>{.least = 1, .most = 256});
    if (op != CollectiveOp::kBarrier) {
      command->add_option("--bytes", arguments->bytes, "Sizes (4KiB,1MiB,25MiB)")->type_name("SIZE,...");
      command->add_option("--dtype", arguments->dtype, "The number type (float32)")->type_name("TYPE");
      command
          ->add_option("--peer-dtype", arguments->peer_dtype,
                       "The number type of gloo and MPI, for as many elements (ours)")
          ->type_name("TYPE");
      command
          ->add_option("--memory", arguments->memory, "Where our buffers lie: resident, foreign (resident)")
          ->type_name("KIND,...");
    }
    command->add_option("--against", arguments->against, "What to compare with: gloo, mpi")
        ->type_name("PEER,...");
    command->add_option("--api", arguments->api, "tensor: compare with the same calls on tensors, too (core)")
        ->type_name("{core,tensor}");
    tools::add_integer(*command, "--rounds", arguments->rounds, "How often each figure is measured (7)",
                       tools::Range<int>{.least = 1, .most = 10000});
    tools::add_integer(*command, "--hosts", arguments->hosts, "2: on two network namespaces, as root (1)",
                       tools::Range<int>{.least = 1, .most = 2});
    command->add_option("--rate", arguments->rate, "With two hosts: bounds the wire between them, as 1gbit")
        ->type_name("RATE");
    command
        ->add_option("--cpu-binding", arguments->cpu_binding,
                     "What each rank of every side is bound to (none)")
        ->type_name("{none,cores}");
    command->add_option("--python", arguments->python, "The Python whose torch is measured as gloo")
        ->type_name("FILE");
    command->add_option("--json", arguments->json, "Write the report there as well")->type_name("FILE");
    command->add_option("--plot", arguments->plot, "Draw time over bytes there, as SVG")->type_name("FILE");
    tools::on_run(*command, context, [op, arguments, &context]() -> Result<int> {
      LOCKSTEP_ASSIGN(const CollectiveOptions options, read_arguments(op, *arguments));
      return bench_collective(options, context, std::cout);
    });
  }
}

}  // namespace lockstep::bench
