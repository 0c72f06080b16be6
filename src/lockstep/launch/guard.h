// The guard: a tiny process that outlives a launcher which was killed, and cleans up after it.
//
// A rank dies with its launcher (PR_SET_PDEATHSIG), but what the rank itself has started does not. The guard
// knows the process groups of the ranks and the scratch folder; when the launcher ends in any way it kills
// what is left of the groups with SIGKILL and removes the folder, then ends too. It holds no descriptor but
// its pipe.
//
// Thread safety: one thread; made before any other thread is started.
// Does not: reach a process that has left its rank's process group before the launcher was killed.
#pragma once

#include <sys/types.h>

#include <string>

#include "lockstep/base/status.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::launch {

class Guard {
 public:
  static Result<Guard> start();
  Guard(Guard&& other) noexcept = default;
  Guard& operator=(Guard&&) = delete;
  // Ends the guard and waits for it.
  ~Guard();

  pid_t pid() const { return pid_; }
  void add_group(pid_t leader) const;
  void remove_group(pid_t leader) const;
  // A folder to remove with all that is in it.
  void add_folder(const std::string& path) const;

 private:
  Guard(UniqueFd pipe, pid_t pid) : pipe_(std::move(pipe)), pid_(pid) {}
  UniqueFd pipe_;
  pid_t pid_;
};

}  // namespace lockstep::launch
