// What the operating system knows of this process, its host and its limits.
//
// Thread safety: free functions, any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::base {

// Becomes readable when the process ends. kUnsupported on kernels before 5.3.
Result<UniqueFd> open_pidfd(pid_t pid);
Status send_signal(int pidfd, int signal);

// "SIGKILL" for 9, "signal 64" for one without a name.
std::string signal_name(int signal);
// From "9", "KILL" or "SIGKILL".
std::optional<int> parse_signal(std::string_view text);
// "exited with code 3", "killed by SIGKILL (signal 9)", "killed by SIGSEGV (signal 11), core dumped".
std::string exit_text(int wait_status);

std::string host_name();
// Processes with equal identities can share memory and reach each other's abstract sockets: boot id, and the
// network, IPC and PID namespaces.
struct HostIdentity {
  std::string name;
  std::string boot_id;
  std::uint64_t net_namespace = 0;
  std::uint64_t ipc_namespace = 0;
  std::uint64_t pid_namespace = 0;

  bool same_host(const HostIdentity& other) const;
  std::string text() const;
  bool operator==(const HostIdentity&) const = default;
};
Result<HostIdentity> this_host();

// The CPUs that the calling thread may run on, ascending: its affinity mask, which lies within its cpuset.
std::vector<int> allowed_cpus();
// Cores that this process may use: the smallest of affinity mask, cpuset and CPU quota (cgroup v1 and v2,
// every level up to the root), rounded up, at least 1.
int usable_cores();
// The smallest of physical memory and the cgroup limits; and what of it is still free.
struct MemoryLimits {
  Bytes total;
  Bytes available;
  std::optional<Bytes> cgroup_limit;
};
Result<MemoryLimits> memory_limits();
// How many processes the kernel's OOM killer has taken in this process's cgroup (v1 and v2); empty if
// unknown.
std::optional<std::uint64_t> oom_kills();

// `path` from the root, whatever this process's working folder becomes. An error if it is relative and the
// working folder has been removed.
Result<std::string> absolute_path(const std::string& path);

// Threads of this process, from /proc; plain fork() is safe while this is 1.
int thread_count();
// True if a debugger or tracer is attached.
bool is_traced();

}  // namespace lockstep::base
