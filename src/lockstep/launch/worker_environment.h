// The environment of a rank: torchrun's variables and ours. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/net.h"
#include "lockstep/launch/placement.h"

namespace lockstep::launch {

using Variables = std::map<std::string, std::string, std::less<>>;

// What all ranks of one attempt have in common.
struct JobSetting {
  std::string job_id = {};  // unique for each job
  std::string run_id = {};  // as the user named it
  std::uint64_t epoch = 0;  // how often the job was restarted
  int max_restarts = 0;
  base::Endpoint master = {};  // where torch's rank 0 may listen
  base::Endpoint store = {};   // where our store is
  bool insecure = false;

  bool operator==(const JobSetting&) const = default;
};

// What one rank is given by this host.
struct RankGrant {
  std::optional<int> store_fd = {};   // rank 0 of a program that spawns: the listening socket
  std::optional<int> secret_fd = {};  // empty for an insecure job
  std::string error_file = {};
  std::string torch_error_file = {};
  std::optional<int> omp_num_threads = {};
};

// True for what the launcher sets itself; the same names are taken out of what a rank inherits.
bool is_launcher_variable(std::string_view name);

Variables rank_variables(const JobSetting& job, const RankPlace& place, const RankGrant& grant);

// `inherited` without the launcher's names, then `extra`, then `rank`; later ones win.
Variables worker_environment(const Variables& inherited,
                             const std::vector<std::pair<std::string, std::string>>& extra,
                             const Variables& rank);

}  // namespace lockstep::launch
