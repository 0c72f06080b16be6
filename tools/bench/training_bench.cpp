#include "tools/bench/training_bench.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "tools/bench/bench_sides.h"
#include "tools/bench/in_turns.h"
#include "tools/bench/machine.h"
#include "tools/bench/output.h"
#include "tools/bench/scratch_folder.h"
#include "tools/bench/training_case.h"
#include "tools/bench/training_report.h"

namespace lockstep::bench {
namespace {

using nlohmann::json;

// A batch is some steps; the ranks meet before and after it only.
constexpr Pace kPace = {.batch_micros = 100'000,
                        .round_micros = 400'000,
                        .most_iterations = 100,
                        .fewest_batches = 3,
                        .most_batches = 10};
constexpr std::size_t kStepsCompared = 4;

class TrainingBench {
 public:
  TrainingBench(const TrainingOptions& options, BenchSides sides, std::ostream& out)
      : options_(options), sides_(std::move(sides)), out_(out), cores_(base::usable_cores()) {}

  Result<std::vector<TrainingRow>> run() {
    out_ << "ddp, float32, " << options_.nproc << " ranks on 1 host, " << options_.threads
         << (options_.threads == 1 ? " thread each, " : " threads each, ") << cores_ << " cores, "
         << options_.rounds << " rounds\n"
         << training_head(options_.against) << std::flush;
    std::vector<TrainingRow> rows;
    for (const std::string& model : options_.model) {
      for (const std::string& option : options_.option) {
        LOCKSTEP_ASSIGN(TrainingRow row, run_case(model, option));
        show_progress("");
        out_ << training_line(row, cores_) << std::flush;
        rows.push_back(std::move(row));
      }
    }
    if (options_.nproc > cores_) out_ << "* more ranks than cores\n";
    for (const std::string& note : notes_) out_ << note << '\n';
    return rows;
  }

 private:
  Result<TrainingRow> run_case(const std::string& model, const std::string& option) {
    TrainingRow row{.model = model,
                    .option = option,
                    .nproc = options_.nproc,
                    .threads = options_.threads,
                    .batch = options_.batch > 0 ? options_.batch : parse_training_model(model)->batch()};
    const std::string what = cat(model, " ", option, " ", row.batch, " ");
    show_progress(cat(model, ", ", option, ", comparing losses"));
    LOCKSTEP_TRY(compare_training(what, row));
    const TurnsCase turns{.label = cat(model, ", ", option),
                          .command =
                              [&what](const BatchPlan& plan, std::size_t /*side*/) {
                                return cat("run ", what, plan.iterations, " ", plan.batches);
                              },
                          .pace = kPace,
                          .rounds = options_.rounds};
    LOCKSTEP_ASSIGN(auto measured, measure_in_turns(sides_, turns, notes_));
    row.ours = std::move(measured.front().rounds);
    row.peers.assign(measured.begin() + 1, measured.end());
    LOCKSTEP_ASSIGN(const auto answers, ask(0, "communication"));
    LOCKSTEP_ASSIGN(row.communication, read_communication(answers));
    return row;
  }

  // Plain training has our losses until the first step was taken, torch's data parallelism also afterwards.
  Status compare_training(const std::string& what, TrainingRow& row) {
    std::vector<Training> trained;
    for (std::size_t side = 0; side < sides_.size(); ++side) {
      LOCKSTEP_ASSIGN(const auto answers, ask(side, cat("train ", what, kStepsCompared)));
      LOCKSTEP_ASSIGN(Training training, read_trained(answers));
      trained.push_back(std::move(training));
    }
    row.gradients = trained.front().gradients;
    row.trained_right = same_weights(trained.front());
    for (std::size_t side = 1; side < sides_.size(); ++side) {
      const std::size_t steps = sides_[side]->name() == "plain" ? 1 : kStepsCompared;
      if (same_losses(trained.front(), trained[side], steps)) continue;
      row.trained_right = false;
      notes_.push_back(
          cat(row.model, ", ", row.option, ": the losses of ", sides_[side]->name(), " are others"));
    }
    return {};
  }

  Result<std::vector<std::string>> ask(std::size_t side, const std::string& line) {
    return sides_[side]->ask(line, Clock::steady().in(std::chrono::minutes(5)));
  }

  const TrainingOptions& options_;
  const BenchSides sides_;
  std::ostream& out_;
  const int cores_;
  std::vector<std::string> notes_;
};

}  // namespace

Result<int> bench_training(const TrainingOptions& options, const tools::CommandContext& context,
                           std::ostream& out) {
  LOCKSTEP_TRY(context.environment.status());
  LOCKSTEP_TRY(check_writable(options.json));
  LOCKSTEP_TRY(check_writable(options.plot));
  LOCKSTEP_ASSIGN(Interruption interruption, Interruption::make());
  LOCKSTEP_ASSIGN(const ScratchFolder scratch, ScratchFolder::make());
  const BenchSetting setting{.context = context,
                             .interruption = interruption,
                             .scratch = scratch.path(),
                             .world = WorldSize{options.nproc},
                             .nproc = options.nproc,
                             .threads = options.threads,
                             .binding = options.binding,
                             .python = options.python};
  LOCKSTEP_ASSIGN(BenchSides sides, start_sides(setting, options.against, start_training_side));
  json report = {{"machine", machine_json()}, {"versions", versions_json(sides)}, {"rows", json::array()}};
  LOCKSTEP_ASSIGN(const auto rows, TrainingBench(options, std::move(sides), out).run());
  for (const TrainingRow& row : rows) report["rows"].push_back(json_of(row));
  LOCKSTEP_TRY(write_report(options.json, report.dump(2) + "\n"));
  LOCKSTEP_TRY(write_report(options.plot, options.plot.empty() ? "" : svg_of(plot_of(rows))));
  const bool verified =
      std::all_of(rows.begin(), rows.end(), [](const TrainingRow& row) { return row.verified(); });
  if (!verified) return Status::internal("a result was wrong; what is above is worth nothing");
  return tools::kExitOk;
}

void add_training_bench(CLI::App& bench, tools::CommandContext& context) {
  CLI::App* command = bench.add_subcommand(
      "ddp", "Measure a step of data parallel training beside plain training and torch's");
  command->footer(
      "Models: mlp-WxD (D layers of width W), resnet18, gpt-small. plain: as many trainings at the same time "
      "that\n"
      "know nothing of each other. torch: DistributedDataParallel on gloo; torch_tuned: the same with\n"
      "gradient_as_bucket_view and static_graph. Each round measures every side, one after the other. us: of "
      "a\n"
      "step (zero_grad, forward, backward, SGD), median of the rounds. cpu us: of all ranks together. "
      "overlap:\n"
      "the share of communication that backward hid; exposed us: what it did not hide. ok: all replicas are "
      "equal,\n"
      "bit by bit, and the losses are torch's. ratio: the peer's time / ours in one round; median, lowest, "
      "highest.");
  auto arguments = std::make_shared<TrainingArguments>();
  tools::add_integer(*command, "--nproc", arguments->nproc, "Ranks (2)",
                     tools::Range<int>{.least = 1, .most = 256});
  command->add_option("--model", arguments->model, "What is trained (mlp-512x4,mlp-1024x8)")
      ->type_name("MODEL,...");
  command
      ->add_option("--option", arguments->option,
                   "How, on both sides: default, find_unused_parameters, static_graph, no_bucket_view, "
                   "no_sync, batched_grad_copy, bucket_cap_mb_list, skip_all_reduce_unused_params, "
                   "fp16_compress_hook, bf16_compress_hook")
      ->type_name("OPTION,...");
  command->add_option("--against", arguments->against, "What to compare with: plain, torch")
      ->type_name("PEER,...");
  tools::add_integer(*command, "--batch", arguments->batch,
                     "Examples of each rank in a step (the model's own)",
                     tools::Range<int>{.least = 1, .most = 65536});
  tools::add_integer(*command, "--threads", arguments->threads, "Threads of each rank that compute (1)",
                     tools::Range<int>{.least = 1, .most = 256});
  tools::add_integer(*command, "--rounds", arguments->rounds, "How often each figure is measured (7)",
                     tools::Range<int>{.least = 1, .most = 10000});
  command
      ->add_option("--cpu-binding", arguments->cpu_binding, "What each rank of every side is bound to (none)")
      ->type_name("{none,cores}");
  command->add_option("--python", arguments->python, "The Python whose torch is measured")->type_name("FILE");
  command->add_option("--json", arguments->json, "Write the report there as well")->type_name("FILE");
  command->add_option("--plot", arguments->plot, "Draw time over bytes there, as SVG")->type_name("FILE");
  tools::on_run(*command, context, [arguments, &context]() -> Result<int> {
    LOCKSTEP_ASSIGN(const TrainingOptions options, read_arguments(*arguments));
    return bench_training(options, context, std::cout);
  });
}

}  // namespace lockstep::bench
