#include "lockstep/launch/worker_environment.h"

#include <algorithm>
#include <array>

#include "lockstep/base/text.h"

namespace lockstep::launch {
namespace {

constexpr auto kLauncherVariables = std::to_array<std::string_view>({
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_USE_AGENT_STORE",
    "LOCKSTEP_STORE",
    "LOCKSTEP_STORE_FD",
    "LOCKSTEP_JOB_ID",
    "LOCKSTEP_EPOCH",
    "LOCKSTEP_SECRET_FD",
    "LOCKSTEP_SECRET_FILE",
    "LOCKSTEP_ERROR_FILE",
    "LOCKSTEP_INSECURE",
    "LOCKSTEP_SPAWN_FD",
});

}  // namespace

bool is_launcher_variable(std::string_view name) {
  return std::find(kLauncherVariables.begin(), kLauncherVariables.end(), name) != kLauncherVariables.end();
}

Variables rank_variables(const JobSetting& job, const RankPlace& place, const RankGrant& grant) {
  Variables out = {
      {"RANK", cat(place.rank)},
      {"WORLD_SIZE", cat(place.world_size)},
      {"LOCAL_RANK", cat(place.local_rank)},
      {"LOCAL_WORLD_SIZE", cat(place.local_world_size)},
      {"GROUP_RANK", cat(place.node)},
      {"GROUP_WORLD_SIZE", cat(place.nodes)},
      {"ROLE_NAME", place.role},
      {"ROLE_RANK", cat(place.role_rank)},
      {"ROLE_WORLD_SIZE", cat(place.role_world_size)},
      {"MASTER_ADDR", job.master.host},
      {"MASTER_PORT", cat(job.master.port)},
      {"TORCHELASTIC_RESTART_COUNT", cat(job.epoch)},
      {"TORCHELASTIC_MAX_RESTARTS", cat(job.max_restarts)},
      {"TORCHELASTIC_RUN_ID", job.run_id},
      {"TORCHELASTIC_ERROR_FILE", grant.torch_error_file},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"LOCKSTEP_STORE", job.store.text()},
      {"LOCKSTEP_JOB_ID", job.job_id},
      {"LOCKSTEP_EPOCH", cat(job.epoch)},
      {"LOCKSTEP_ERROR_FILE", grant.error_file},
  };
  if (grant.store_fd) out["LOCKSTEP_STORE_FD"] = cat(*grant.store_fd);
  if (grant.secret_fd) out["LOCKSTEP_SECRET_FD"] = cat(*grant.secret_fd);
  if (job.insecure) out["LOCKSTEP_INSECURE"] = "1";
  if (grant.omp_num_threads) out["OMP_NUM_THREADS"] = cat(*grant.omp_num_threads);
  return out;
}

Variables worker_environment(const Variables& inherited,
                             const std::vector<std::pair<std::string, std::string>>& extra,
                             const Variables& rank) {
  Variables out;
  for (const auto& [name, value] : inherited) {
    if (!is_launcher_variable(name)) out.emplace(name, value);
  }
  for (const auto& [name, value] : extra) out.insert_or_assign(name, value);
  for (const auto& [name, value] : rank) out.insert_or_assign(name, value);
  return out;
}

}  // namespace lockstep::launch
