#include "lockstep/base/process.h"

#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "lockstep/base/cgroup.h"
#include "lockstep/base/text.h"

namespace lockstep::base {
namespace {

constexpr int kLastSignal = 64;

// The number after "name:" in /proc/self/status.
std::optional<int> status_number(std::string_view name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name)) return parse_integer<int>(trim(std::string_view(line).substr(name.size())));
  }
  return std::nullopt;
}

Result<std::uint64_t> namespace_id(const char* path) {
  struct stat file {};
  if (stat(path, &file) != 0)
    return Status::from_errno(cat("cannot tell the namespace of this process by ", path), errno);
  return std::uint64_t{file.st_ino};
}

}  // namespace

Result<UniqueFd> open_pidfd(pid_t pid) {
  UniqueFd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (fd) return fd;
  if (errno == ESRCH) {
    return Status::disconnected(cat("there is no process with pid ", pid),
                                {.failure = Failure::kPeerDied, .pid = pid});
  }
  if (errno == ENOSYS)
    return Status::unsupported("this kernel has no pidfd_open(2); Linux 5.3 or newer has it");
  return Status::from_errno(cat("cannot open a pidfd of process ", pid), errno);
}

Status send_signal(int pidfd, int signal) {
  if (syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0) return {};
  if (errno == ESRCH) {
    return Status::disconnected(cat("cannot send ", signal_name(signal), ": the process has ended"),
                                {.failure = Failure::kPeerDied});
  }
  return Status::from_errno(cat("cannot send ", signal_name(signal)), errno);
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? cat("SIG", name) : cat("signal ", signal);
}

std::optional<int> parse_signal(std::string_view text) {
  if (const auto number = parse_integer<int>(text))
    return *number >= 1 && *number <= kLastSignal ? number : std::nullopt;
  std::string name(text);
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  if (!name.starts_with("SIG")) name = "SIG" + name;
  for (int signal = 1; signal <= kLastSignal; ++signal) {
    if (name == signal_name(signal)) return signal;
  }
  return std::nullopt;
}

std::string exit_text(int wait_status) {
  if (WIFEXITED(wait_status)) return cat("exited with code ", WEXITSTATUS(wait_status));
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    const std::string name = signal_name(signal);
    return cat("killed by ", name, name.starts_with("SIG") ? cat(" (signal ", signal, ")") : "",
               WCOREDUMP(wait_status) ? ", core dumped" : "");
  }
  if (WIFSTOPPED(wait_status)) return cat("stopped by ", signal_name(WSTOPSIG(wait_status)));
  return cat("left with wait status ", wait_status);
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

bool HostIdentity::same_host(const HostIdentity& other) const {
  return boot_id == other.boot_id && net_namespace == other.net_namespace &&
         ipc_namespace == other.ipc_namespace && pid_namespace == other.pid_namespace;
}

std::string HostIdentity::text() const {
  return cat(name, " (boot ", boot_id, ", namespaces net ", net_namespace, ", ipc ", ipc_namespace, ", pid ",
             pid_namespace, ")");
}

Result<HostIdentity> this_host() {
  constexpr const char* kBootId = "/proc/sys/kernel/random/boot_id";
  HostIdentity host{.name = host_name(), .boot_id = {}};
  std::ifstream file(kBootId);
  if (!(file >> host.boot_id))
    return Status::unsupported(cat("cannot tell this boot of the host by ", kBootId));
  LOCKSTEP_ASSIGN(host.net_namespace, namespace_id("/proc/self/ns/net"));
  LOCKSTEP_ASSIGN(host.ipc_namespace, namespace_id("/proc/self/ns/ipc"));
  LOCKSTEP_ASSIGN(host.pid_namespace, namespace_id("/proc/self/ns/pid"));
  return host;
}

std::vector<int> allowed_cpus() {
  // A mask that is too small for the machine is refused with EINVAL.
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
    cpu_set_t* mask = CPU_ALLOC(cpus);
    const std::size_t size = CPU_ALLOC_SIZE(cpus);
    const bool told = sched_getaffinity(0, size, mask) == 0;
    const int error = errno;
    std::vector<int> allowed;
    for (int cpu = 0; told && cpu < cpus; ++cpu) {
      if (CPU_ISSET_S(cpu, size, mask)) allowed.push_back(cpu);
    }
    CPU_FREE(mask);
    if (told) return allowed;
    if (error != EINVAL) break;
  }
  return {0};
}

int usable_cores() { return usable_cores_below("", static_cast<int>(allowed_cpus().size())); }
Result<MemoryLimits> memory_limits() { return memory_limits_below(""); }
std::optional<std::uint64_t> oom_kills() { return oom_kills_below(""); }

Result<std::string> absolute_path(const std::string& path) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path, error);
  if (error) {
    return Status::from_errno(
        cat(base::quoted(path), " is relative, and the working folder is not there any more"), error.value());
  }
  // What .. means behind a link is for the kernel to say.
  const bool climbs = std::find(whole.begin(), whole.end(), "..") != whole.end();
  return (climbs ? whole : whole.lexically_normal()).string();
}

// Where /proc does not tell, fork() must not be taken for safe.
int thread_count() { return status_number("Threads:").value_or(2); }
bool is_traced() { return status_number("TracerPid:").value_or(0) != 0; }

}  // namespace lockstep::base
