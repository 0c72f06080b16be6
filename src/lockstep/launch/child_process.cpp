#include "lockstep/launch/child_process.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "lockstep/base/text.h"

namespace lockstep::launch {
namespace {

// Everything that the child needs, made before the fork: there it may not allocate.
struct Prepared {
  const char* path = nullptr;
  char* const* argv = nullptr;
  char* const* environment = nullptr;
  int standard[3] = {0, 1, 2};
  const std::vector<int>* inherited = nullptr;
  const cpu_set_t* cpus = nullptr;
  const rlimit* open_files = nullptr;
  pid_t parent = 0;
  int error_fd = -1;
};

enum class Step : int { kStandard, kBind, kLimit, kExec };
struct ChildError {
  Step step;
  int error;
};

[[noreturn]] void fail_in_child(const Prepared& prepared, Step step, int error) {
  const ChildError report{step, error};
  while (write(prepared.error_fd, &report, sizeof(report)) < 0 && errno == EINTR) {
  }
  _exit(127);
}

void reset_signals_in_child() {
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action {};
    if (sigaction(signal, nullptr, &action) != 0) continue;
    if (action.sa_handler == SIG_DFL || (action.sa_handler == SIG_IGN && signal != SIGPIPE)) continue;
    action = {};
    action.sa_handler = SIG_DFL;
    sigaction(signal, &action, nullptr);
  }
}

// Runs in the child, on the parent's memory (vfork): async-signal-safe calls only, and no write to shared
// state.
[[noreturn]] void exec_in_child(const Prepared& prepared) {
  setpgid(0, 0);
  // The parent may have died before the request took effect: then nobody would ever send the signal.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != prepared.parent) _exit(127);
  for (int target = 0; target < 3; ++target) {
    const int source = prepared.standard[target];
    if (source != target && dup2(source, target) < 0) fail_in_child(prepared, Step::kStandard, errno);
  }
  syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
  for (const int fd : *prepared.inherited) fcntl(fd, F_SETFD, 0);
  if (prepared.cpus != nullptr && sched_setaffinity(0, sizeof(cpu_set_t), prepared.cpus) != 0) {
    fail_in_child(prepared, Step::kBind, errno);
  }
  if (prepared.open_files != nullptr && setrlimit(RLIMIT_NOFILE, prepared.open_files) != 0) {
    fail_in_child(prepared, Step::kLimit, errno);
  }
  reset_signals_in_child();
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(prepared.path, prepared.argv, prepared.environment);
  fail_in_child(prepared, Step::kExec, errno);
}

// Kept apart so that no frame with destructors is shared with the child.
pid_t fork_and_exec(const Prepared& prepared) {
  sigset_t all;
  sigset_t old;
  sigfillset(&all);
  // No handler of this process may run in the child while it shares our memory.
  pthread_sigmask(SIG_SETMASK, &all, &old);
  const pid_t pid = vfork();
  if (pid == 0) exec_in_child(prepared);
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  errno = error;
  return pid;
}

Status describe(const ChildSpec& spec, const ChildError& report) {
  switch (report.step) {
    case Step::kStandard:
      return Status::from_errno("the child's standard streams cannot be set", report.error);
    case Step::kBind:
      return Status::from_errno("the child cannot be bound to its CPUs", report.error);
    case Step::kLimit:
      return Status::from_errno("the child's limit of open files cannot be set", report.error);
    case Step::kExec:
      break;
  }
  if (report.error == ENOEXEC) {
    return Status::unsupported(cat(spec.path,
                                   " cannot be executed: it is neither a program for this machine nor a "
                                   "script that starts with #! and its interpreter"));
  }
  if (report.error == ENOENT) {
    return Status::unsupported(
        cat(spec.path,
            " cannot be executed: the interpreter that its first line or its header names is not there"));
  }
  const char* text = strerror(report.error);  // known errors only: no shared buffer is written
  if (report.error == EACCES || report.error == EPERM || report.error == ETXTBSY || report.error == ELIBBAD) {
    return Status::unsupported(cat(spec.path, " cannot be executed: ", text));
  }
  return Status::from_errno(cat(spec.path, " cannot be executed"), report.error);
}

// Read after the child has executed or given up: never blocks for long.
std::optional<ChildError> read_error(int fd) {
  ChildError report{};
  ssize_t got = 0;
  do {
    got = read(fd, &report, sizeof(report));
  } while (got < 0 && errno == EINTR);
  if (got != sizeof(report)) return std::nullopt;
  return report;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  for (std::string& string : strings) out.push_back(string.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

Result<pid_t> start_child(const ChildSpec& spec) {
  std::vector<std::string> arguments = spec.argv;
  std::vector<std::string> variables;
  variables.reserve(spec.environment.size());
  for (const auto& [name, value] : spec.environment) variables.push_back(cat(name, "=", value));
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> environment = pointers(variables);
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (const int cpu : spec.cpus) CPU_SET(static_cast<std::size_t>(cpu), &cpus);

  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return Status::from_errno("a process cannot be started, because no pipe can be made", errno);
  }
  const UniqueFd error_reader(ends[0]);
  UniqueFd error_writer(ends[1]);

  const Prepared prepared{
      .path = spec.path.c_str(),
      .argv = argv.data(),
      .environment = environment.data(),
      .standard = {spec.stdin_fd.value_or(0), spec.stdout_fd.value_or(1), spec.stderr_fd.value_or(2)},
      .inherited = &spec.inherited,
      .cpus = spec.cpus.empty() ? nullptr : &cpus,
      .open_files = spec.open_files ? &*spec.open_files : nullptr,
      .parent = getpid(),
      .error_fd = error_writer.get(),
  };
  const pid_t pid = fork_and_exec(prepared);
  if (pid < 0) return Status::from_errno("a process cannot be started", errno);
  error_writer.reset();
  if (const auto report = read_error(error_reader.get())) {
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return describe(spec, *report);
  }
  return pid;
}

void signal_group(pid_t leader, int signal) { kill(-leader, signal); }

bool group_exists(pid_t leader) { return kill(-leader, 0) == 0 || errno == EPERM; }

}  // namespace lockstep::launch
