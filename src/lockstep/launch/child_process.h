// Starts one process: fast, with nothing inherited that was not asked for, and dead when its parent dies.
//
// Thread safety: any thread. The child gets SIGKILL when the *thread* that started it ends
// (PR_SET_PDEATHSIG), so that thread must outlive it. Between vfork and exec the child calls only what is
// async-signal-safe.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/launch/worker_environment.h"

namespace lockstep::launch {

struct ChildSpec {
  std::string path = {};  // the executable; not looked up
  std::vector<std::string> argv = {};
  Variables environment = {};
  // Descriptors of this process that become 0, 1 and 2; empty: this process's own.
  std::optional<int> stdin_fd = {};
  std::optional<int> stdout_fd = {};
  std::optional<int> stderr_fd = {};
  // These stay open in the child, with the same numbers; all others from 3 on are closed.
  std::vector<int> inherited = {};
  std::vector<int> cpus = {};             // bound to these; empty: not bound
  std::optional<rlimit> open_files = {};  // RLIMIT_NOFILE in the child; empty: as here
};

// The child is the leader of a process group of its own, with an empty signal mask and default handlers (what
// is ignored here stays ignored, but SIGPIPE). Returns once the program has been executed. The error says
// what failed: kUnsupported if the file cannot be executed, else as Status::from_errno says.
Result<pid_t> start_child(const ChildSpec& spec);

// To every process of the group that `leader` leads. An empty group is not an error.
void signal_group(pid_t leader, int signal);
// False once the group has no process any more (a leader that was not reaped counts as one).
bool group_exists(pid_t leader);

}  // namespace lockstep::launch
