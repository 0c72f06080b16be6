#include "lockstep/launch/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::launch {
namespace {

// Kills and reaps the process group if wait() was not reached.
class ChildGroup {
 public:
  explicit ChildGroup(pid_t pid) : pid_(pid) {}
  ChildGroup(const ChildGroup&) = delete;
  ChildGroup& operator=(const ChildGroup&) = delete;
  ~ChildGroup() {
    if (pid_ <= 0) return;
    ::kill(-pid_, SIGKILL);
    reap();
  }

  pid_t pid() const { return pid_; }
  // The child has ended: its status, and an end to what it left running in its group.
  int wait() {
    ::kill(-pid_, SIGKILL);  // before the reaping, while the number is still ours
    const int status = reap();
    pid_ = -1;
    return status;
  }

 private:
  int reap() const {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
  }
  pid_t pid_;
};

Result<pid_t> spawn(const std::vector<std::string>& arguments, int output) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);

  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error == ENOENT) return Status::unsupported(cat("there is no program '", arguments[0], "' in PATH"));
  if (error != 0) return Status::from_errno(cat("cannot start '", arguments[0], "'"), error);
  return pid;
}

// Reads what is there now. False once nobody can write any more.
bool drain(int fd, std::string& text, std::size_t limit) {
  std::array<char, 4096> chunk;
  for (;;) {
    const ssize_t count = ::read(fd, chunk.data(), chunk.size());
    if (count > 0) {
      text.append(chunk.data(), std::min(static_cast<std::size_t>(count), limit - text.size()));
    } else if (count == 0 || (errno != EINTR && errno != EAGAIN)) {
      return false;
    } else if (errno == EAGAIN) {
      return true;
    }
  }
}

}  // namespace

bool ProgramOutput::succeeded() const { return WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0; }

std::string ProgramOutput::first_line() const {
  const std::string_view trimmed = base::trim(text);
  return std::string(base::trim(trimmed.substr(0, trimmed.find('\n'))));
}

Result<ProgramOutput> run_program(const std::vector<std::string>& arguments, const Deadline& deadline,
                                  Bytes limit) {
  LOCKSTEP_CHECK(!arguments.empty(), "run_program needs a program");
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return Status::from_errno("cannot make a pipe", errno);
  const UniqueFd output(ends[0]);
  UniqueFd input(ends[1]);
  // The child's end must block: few programs expect EAGAIN from their stdout.
  ::fcntl(input.get(), F_SETFL, 0);

  LOCKSTEP_ASSIGN(const pid_t pid, spawn(arguments, input.get()));
  ChildGroup child(pid);
  input.reset();
  LOCKSTEP_ASSIGN(const UniqueFd pidfd, base::open_pidfd(pid));

  ProgramOutput result;
  std::array<pollfd, 2> waits{{{pidfd.get(), POLLIN, 0}, {output.get(), POLLIN, 0}}};
  while (waits[0].revents == 0) {
    if (deadline.expired()) {
      return Status::timeout(cat("'", arguments[0], "' did not end in time and was killed"));
    }
    if (::poll(waits.data(), waits.size(), deadline.poll_millis()) < 0 && errno != EINTR) {
      return Status::from_errno("poll failed", errno);
    }
    if (!drain(output.get(), result.text, limit.value)) waits[1].fd = -1;
  }
  drain(output.get(), result.text, limit.value);
  result.wait_status = child.wait();
  return result;
}

}  // namespace lockstep::launch
