// The parent's side of spawn: the ranks' processes, from what they are given to why the first one failed.
//
// Thread safety: one thread, which starts them and waits for them.
#pragma once

#include <sys/types.h>

#include <optional>
#include <vector>

#include "lockstep/base/secret.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/launch/coordinator.h"
#include "lockstep/launch/report.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/launch/worker_environment.h"

namespace lockstep::launch {

class SpawnedRanks {
 public:
  // Makes the job's secret and the sockets of rank 0, and the memory where each rank leaves its error.
  // kUnsupported if this process ignores SIGCHLD.
  static Result<SpawnedRanks> make(WorldSize size, const Variables& inherited, const SpawnOptions& options);
  SpawnedRanks(SpawnedRanks&&) noexcept = default;
  SpawnedRanks& operator=(SpawnedRanks&&) = delete;
  // Kills and reaps what is left.
  ~SpawnedRanks();

  // What rank `rank` is given: its variables, and the descriptors that they name.
  struct Grant {
    Variables environment = {};
    std::vector<int> inherited = {};
  };
  Grant grant(Rank rank) const;
  // `pid` leads a process group of its own.
  Status add(Rank rank, pid_t pid);

  // Waits for all; after the first failure the rest is told to stop.
  Status wait();

 private:
  struct Process {
    UniqueFd error = {};  // a memfd
    pid_t pid = 0;
    UniqueFd pidfd = {};
    std::optional<int> wait_status = {};
    bool unseen = false;  // it has ended, and its status was not ours to take
  };
  SpawnedRanks(WorldSize size, const Variables& inherited, const SpawnOptions& options)
      : processes_(static_cast<std::size_t>(size.value)), inherited_(inherited), options_(options) {}

  bool is_running(const Process& process) const { return process.pid != 0 && !process.wait_status; }
  // Waits for any of them to end, at most until `deadline`; gives those that failed.
  std::vector<EndedRank> wait_for_some(const Deadline& deadline);
  Status wait_for_first_failure();
  void stop_all();
  std::optional<ErrorRecord> error_of(const Process& process) const;
  Status failure_of(const EndedRank& ended) const;
  bool any_running() const;

  std::vector<Process> processes_;
  Variables inherited_;
  SpawnOptions options_;
  std::vector<RankPlace> places_;
  JobSetting job_;
  UniqueFd store_listener_;  // of the store, which rank 0 serves
  UniqueFd master_port_;
  UniqueFd secret_;
};

}  // namespace lockstep::launch
