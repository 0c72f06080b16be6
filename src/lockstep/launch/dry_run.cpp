#include "lockstep/launch/dry_run.h"

#include "lockstep/base/text.h"
#include "lockstep/base/topology.h"
#include "lockstep/launch/worker_plan.h"

namespace lockstep::launch {
namespace {

Round assumed_round(const RunOptions& options, const LocalSetting& setting) {
  Round round;
  round.job = {.job_id = cat(options.rdzv_id.empty() ? "job" : options.rdzv_id, "-<random>"),
               .max_restarts = options.max_restarts,
               .insecure = !setting.secret};
  round.job.run_id = options.rdzv_id.empty() ? round.job.job_id : options.rdzv_id;
  round.job.master.host = options.nnodes == 1 ? "127.0.0.1" : options.rdzv_endpoint->host;
  round.node = options.node_rank.value_or(0);
  for (int node = 0; node < options.nnodes; ++node) {
    round.nodes.push_back({.host = node == round.node ? setting.host : cat("<host ", node, ">"),
                           .nproc = setting.nproc,
                           .role = options.role});
  }
  return round;
}

void mark_unknown(const Round& round, const LocalSetting& setting, WorkerPlan& plan) {
  Variables& variables = plan.child.environment;
  variables["MASTER_PORT"] = "<free port>";
  variables["LOCKSTEP_STORE"] = cat(round.job.master.host, ":<free port>");
  if (setting.secret) variables["LOCKSTEP_SECRET_FD"] = "<descriptor>";
}

std::string stream_text(std::string_view name, const RankOutput::Plan& plan) {
  if (plan.log_path.empty()) return {};
  return cat("  ", name, ": ", plan.log_path, plan.shown ? ", and shown" : "", "\n");
}

}  // namespace

std::string dry_run_text(const RunOptions& options, const Environment& environment,
                         const LocalSetting& setting) {
  const Round round = assumed_round(options, setting);
  const PlanInput input{
      .options = options, .environment = environment, .setting = setting, .scratch = "<scratch>"};
  std::string out;
  for (WorkerPlan& plan : plan_workers(input, round)) {
    mark_unknown(round, setting, plan);
    out += cat("rank ", plan.place.rank, " on ", plan.place.host, ":\n");
    for (const auto& [name, value] : plan.child.environment) {
      const auto same = environment.all.find(name);
      if (same == environment.all.end() || same->second != value) out += cat("  ", name, "=", value, "\n");
    }
    if (!plan.child.cpus.empty()) out += cat("  bound to CPUs ", base::cpu_list_text(plan.child.cpus), "\n");
    out += cat(stream_text("stdout", plan.out), stream_text("stderr", plan.error));
    out += cat("  executes ", plan.child.path, ":");
    for (const std::string& word : plan.child.argv) out += cat(" ", base::quoted(word, word.size()));
    out += "\n";
  }
  return out;
}

}  // namespace lockstep::launch
