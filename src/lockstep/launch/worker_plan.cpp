#include "lockstep/launch/worker_plan.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "lockstep/base/text.h"

namespace lockstep::launch {

RankFiles rank_files(const std::string& base, std::uint64_t epoch, const RankPlace& place,
                     const RunOptions& options) {
  const std::string folder = cat(base, "/attempt_", epoch, "/", place.rank);
  const Streams redirected = options.redirects.of(place.local_rank);
  const Streams teed = options.tee.of(place.local_rank);
  const bool has_logs = !options.log_dir.empty();
  RankFiles files{.error_file = cat(folder, "/error.json"),
                  .torch_error_file = cat(folder, "/torch_error.json")};
  if (has_logs && (redirected.out || teed.out)) files.out_log = cat(folder, "/stdout.log");
  if (has_logs && (redirected.error || teed.error)) files.error_log = cat(folder, "/stderr.log");
  return files;
}

Status make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error) return {};
  return Status::from_errno(cat("the folder ", path, " cannot be made"), error.value());
}

RankOutput::Plan plan_output(Stream stream, const RankPlace& place, const PlanInput& input,
                             const PrefixTemplate& prefix, const RankFiles& files) {
  const RunOptions& options = input.options;
  const auto of_stream = [stream](const Streams& streams) {
    return stream == Stream::kOut ? streams.out : streams.error;
  };
  const bool redirected = of_stream(options.redirects.of(place.local_rank));
  const bool teed = of_stream(options.tee.of(place.local_rank));
  const auto& filter = options.local_ranks_filter;
  const bool filtered_out =
      !filter.empty() && std::find(filter.begin(), filter.end(), place.local_rank) == filter.end();
  const std::string text = prefix.render(place);
  return {.stream = stream,
          .shown = !filtered_out && (teed || !redirected),
          .prefix = of_stream(input.coloured) ? in_rank_colour(text, place.rank) : text,
          .log_path = stream == Stream::kOut ? files.out_log : files.error_log};
}

std::vector<WorkerPlan> plan_workers(const PlanInput& input, const Round& round) {
  const RunOptions& options = input.options;
  const LocalSetting& setting = input.setting;
  const PrefixTemplate prefix = PrefixTemplate::parse(options.prefix).value();
  const std::string base =
      options.log_dir.empty() ? input.scratch : cat(options.log_dir, "/", round.job.job_id);
  std::vector<WorkerPlan> plans;
  for (const RankPlace& place : place_ranks(round.nodes)) {
    if (place.node != round.node) continue;
    const RankFiles files = rank_files(base, round.job.epoch, place, options);
    RankGrant grant{.error_file = files.error_file,
                    .torch_error_file = files.torch_error_file,
                    .omp_num_threads = setting.omp_num_threads};
    ChildSpec child{.path = setting.program.path,
                    .argv = setting.program.argv,
                    .cpus = setting.cpus[static_cast<std::size_t>(place.local_rank)],
                    .open_files = setting.open_files};
    // As mpirun: the first rank reads what the launcher is fed. Never a terminal: a rank is a background
    // process there, and would be stopped.
    child.stdin_fd = place.local_rank == 0 && isatty(0) == 0 ? 0 : input.null_fd;
    if (input.secret_fd >= 0) {
      grant.secret_fd = input.secret_fd;
      child.inherited.push_back(input.secret_fd);
    }
    child.environment =
        worker_environment(input.environment.all, options.env, rank_variables(round.job, place, grant));
    plans.push_back({.place = place,
                     .child = std::move(child),
                     .out = plan_output(Stream::kOut, place, input, prefix, files),
                     .error = plan_output(Stream::kError, place, input, prefix, files),
                     .error_file = files.error_file,
                     .torch_error_file = files.torch_error_file});
  }
  return plans;
}

}  // namespace lockstep::launch
