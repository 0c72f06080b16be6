#include "tools/bench/peer_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "lockstep/base/process.h"
#include "lockstep/base/text.h"

extern char** environ;

namespace lockstep::bench {

PeerProcess::PeerProcess(std::string name, pid_t pid, base::UniqueFd in, base::UniqueFd out)
    : name_(std::move(name)), pid_(pid), in_(std::move(in)), out_(std::move(out)) {}

PeerProcess::PeerProcess(PeerProcess&& other) noexcept
    : name_(other.name_),
      pid_(std::exchange(other.pid_, -1)),
      in_(std::move(other.in_)),
      out_(std::move(other.out_)),
      received_(std::move(other.received_)) {}

Result<PeerProcess> PeerProcess::start(const std::filesystem::path& program) {
  std::array<int, 2> in{};
  std::array<int, 2> out{};
  if (pipe2(in.data(), O_CLOEXEC) != 0) return Status::from_errno("no pipe for a helper", errno);
  base::UniqueFd in_end(in[0]);
  base::UniqueFd to_helper(in[1]);
  if (pipe2(out.data(), O_CLOEXEC) != 0) return Status::from_errno("no pipe for a helper", errno);
  base::UniqueFd from_helper(out[0]);
  base::UniqueFd out_end(out[1]);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in_end.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out_end.get(), STDOUT_FILENO);
  std::string path = program.string();
  std::array<char*, 2> arguments = {path.data(), nullptr};
  pid_t pid = -1;
  const int error = posix_spawn(&pid, path.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return Status::from_errno(cat("cannot start ", path), error);
  return PeerProcess(program.filename().string(), pid, std::move(to_helper), std::move(from_helper));
}

PeerProcess::~PeerProcess() {
  if (pid_ < 0) return;
  in_.reset();
  // Between commands it reads and sees the end. One that was given up in the middle of a command does not.
  const Deadline deadline = Clock::steady().in(std::chrono::seconds(2));
  pollfd descriptor{.fd = out_.get(), .events = 0, .revents = 0};
  if (poll(&descriptor, 1, deadline.poll_millis()) == 0) kill(pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
}

Result<std::string> PeerProcess::ask(const std::string& command, const Deadline& deadline) {
  const std::string line = command + "\n";
  if (write(in_.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return Status::from_errno(cat("the helper ", name_, " takes no more commands"), errno);
  }
  std::size_t end = std::string::npos;
  while ((end = received_.find('\n')) == std::string::npos) {
    pollfd descriptor{.fd = out_.get(), .events = POLLIN, .revents = 0};
    if (poll(&descriptor, 1, deadline.poll_millis()) < 0 && errno != EINTR) {
      return Status::from_errno(cat("the helper ", name_, " cannot be waited for"), errno);
    }
    if (descriptor.revents != 0) {
      std::array<char, 4096> bytes;
      const ssize_t count = read(out_.get(), bytes.data(), bytes.size());
      if (count == 0) {
        int status = 0;
        waitpid(std::exchange(pid_, -1), &status, 0);
        return Status::disconnected(
            cat("the helper ", name_, " ", base::exit_text(status), " during \"", command, "\""));
      }
      if (count > 0) received_.append(bytes.data(), static_cast<std::size_t>(count));
    } else if (deadline.expired()) {
      return Status::timeout(cat("the helper ", name_, " did not answer \"", command, "\" in time"));
    }
  }
  std::string answer = received_.substr(0, end);
  received_.erase(0, end + 1);
  return answer;
}

}  // namespace lockstep::bench
