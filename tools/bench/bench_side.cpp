#include "tools/bench/bench_side.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>

#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/child_process.h"

namespace lockstep::bench {
namespace {

Result<UniqueFd> listen_at(const std::string& path, int ranks) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return Status::invalid(
        cat(base::quoted(path), " is too long for a socket; set TMPDIR to a shorter folder"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener) return Status::from_errno("no socket for the ranks can be made", errno);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener.get(), ranks) != 0) {
    return Status::from_errno(cat("no socket for the ranks can be made at ", path), errno);
  }
  return listener;
}

Status write_line(int fd, const std::string& line) {
  for (std::size_t sent = 0; sent < line.size();) {
    const ssize_t count = send(fd, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno != EINTR) return Status::from_errno("a rank takes no more commands", errno);
    if (count > 0) sent += static_cast<std::size_t>(count);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<BenchSide>> BenchSide::start(const SideOptions& options, Interruption& interruption,
                                                    const Deadline& deadline) {
  std::unique_ptr<BenchSide> side(new BenchSide(options.name, interruption));
  LOCKSTEP_ASSIGN(const UniqueFd listener, listen_at(options.socket, options.ranks));
  LOCKSTEP_TRY(side->start_processes(options));
  LOCKSTEP_TRY(side->accept_ranks(listener, options.ranks, deadline));
  return side;
}

Status BenchSide::start_processes(const SideOptions& options) {
  // A rank's stdin and stdout are none of the command's.
  const UniqueFd input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!input) return Status::from_errno("/dev/null cannot be opened", errno);
  for (const SideProcess& process : options.processes) {
    launch::ChildSpec spec{.path = "/usr/bin/env",
                           .argv = {"env"},
                           .environment = process.environment,
                           .stdin_fd = input.get(),
                           .stdout_fd = STDERR_FILENO,
                           .cpus = process.cpus};
    spec.argv.insert(spec.argv.end(), process.argv.begin(), process.argv.end());
    std::optional<TwoHosts::Visit> visit;
    if (options.hosts != nullptr) {
      LOCKSTEP_ASSIGN(auto entered, options.hosts->enter(process.host));
      visit.emplace(std::move(entered));
    }
    LOCKSTEP_ASSIGN(const pid_t pid, launch::start_child(spec));
    processes_.push_back({.pid = pid});
    LOCKSTEP_ASSIGN(processes_.back().pidfd, base::open_pidfd(pid));
  }
  return {};
}

Status BenchSide::accept_ranks(const UniqueFd& listener, int ranks, const Deadline& deadline) {
  std::vector<Link> unnamed;
  while (static_cast<int>(unnamed.size()) < ranks) {
    LOCKSTEP_TRY(wait_readable(listener.get(), deadline));
    UniqueFd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (fd) unnamed.push_back({.fd = std::move(fd)});
  }
  links_.resize(unnamed.size());
  for (Link& link : unnamed) LOCKSTEP_TRY(greet(std::move(link), deadline));
  return {};
}

Status BenchSide::greet(Link link, const Deadline& deadline) {
  LOCKSTEP_ASSIGN(const std::string hello, read_line(link, deadline));
  const std::vector<std::string> words = base::split(hello, ' ');
  const auto rank = words.size() > 2 ? base::parse_integer<std::size_t>(words[1]) : std::nullopt;
  if (!rank || words[0] != "rank" || *rank >= links_.size() || links_[*rank].fd) {
    return Status::internal(cat("a rank of ", name_, " introduced itself with ", base::quoted(hello)));
  }
  links_[*rank] = std::move(link);
  if (*rank == 0) version_ = base::join({words.begin() + 2, words.end()}, " ");
  return {};
}

BenchSide::~BenchSide() {
  links_.clear();
  const Deadline deadline = Clock::steady().in(std::chrono::seconds(2));
  for (const Process& process : processes_) {
    pollfd entry{.fd = process.pidfd.get(), .events = POLLIN, .revents = 0};
    while (poll(&entry, 1, deadline.poll_millis()) < 0 && errno == EINTR) {
    }
    if (entry.revents == 0) launch::signal_group(process.pid, SIGKILL);
    while (waitpid(process.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

Result<std::vector<std::string>> BenchSide::ask(const std::string& line, const Deadline& deadline) {
  for (const Link& link : links_) LOCKSTEP_TRY(write_line(link.fd.get(), line + "\n"));
  std::vector<std::string> answers;
  for (Link& link : links_) {
    LOCKSTEP_ASSIGN(std::string answer, read_line(link, deadline));
    answers.push_back(std::move(answer));
  }
  return answers;
}

Result<std::string> BenchSide::read_line(Link& link, const Deadline& deadline) {
  std::size_t end = 0;
  while ((end = link.received.find('\n')) == std::string::npos) {
    LOCKSTEP_TRY(wait_readable(link.fd.get(), deadline));
    std::array<char, 4096> bytes;
    const ssize_t count = read(link.fd.get(), bytes.data(), bytes.size());
    if (count > 0) link.received.append(bytes.data(), static_cast<std::size_t>(count));
    if (count == 0) {
      return Status::disconnected(cat("a rank of ", name_, " ended; its reason is above, if it gave one"));
    }
  }
  std::string line = link.received.substr(0, end);
  link.received.erase(0, end + 1);
  return line;
}

Status BenchSide::wait_readable(int fd, const Deadline& deadline) {
  std::vector<pollfd> entries = {{.fd = fd, .events = POLLIN, .revents = 0},
                                 {.fd = interruption_.fd(), .events = POLLIN, .revents = 0}};
  for (const Process& process : processes_) {
    entries.push_back({.fd = process.pidfd.get(), .events = POLLIN, .revents = 0});
  }
  for (;;) {
    if (poll(entries.data(), entries.size(), deadline.poll_millis()) < 0 && errno != EINTR) {
      return Status::from_errno(cat("the ranks of ", name_, " cannot be waited for"), errno);
    }
    if (entries[1].revents != 0) return Status::aborted("a signal has ended the bench");
    if (entries[0].revents != 0) return {};
    for (std::size_t i = 2; i < entries.size(); ++i) {
      if (entries[i].revents == 0) continue;
      return Status::disconnected(cat("a process of ", name_, " (pid ", processes_[i - 2].pid,
                                      ") has ended; its reason is above, if it gave one"));
    }
    if (deadline.expired()) return Status::timeout(cat("the ranks of ", name_, " did not answer in time"));
  }
}

}  // namespace lockstep::bench
