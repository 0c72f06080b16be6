#include "lockstep/tensor/breakpoint.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/default_group.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/logger.h"

namespace lockstep::tensor {
namespace {

using base::UniqueFd;

constexpr Duration kLook = std::chrono::milliseconds(100);
// What the others have beyond the timeout of the rank that stops: it has to come back first.
constexpr Duration kMargin = std::chrono::minutes(1);

// The timeouts of all groups are at least so long while it lives.
class RaisedTimeouts {
 public:
  RaisedTimeouts(const Session& session, Duration least) {
    for (const std::shared_ptr<GroupState>& group : session.groups()) {
      const Duration before = group->any_backend("breakpoint")->timeout();
      if (before >= least) continue;
      group->set_timeout(least);
      raised_.emplace_back(group, before);
    }
  }
  ~RaisedTimeouts() {
    for (const auto& [group, before] : raised_) {
      try {
        group->set_timeout(before);
      } catch (const InvalidArgument&) {
        // It was destroyed meanwhile.
      }
    }
  }
  RaisedTimeouts(const RaisedTimeouts&) = delete;
  RaisedTimeouts& operator=(const RaisedTimeouts&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<GroupState>, Duration>> raised_;  // shared with their handles
};

// The terminal of the job, in the foreground of which this process is while it lives.
class Terminal {
 public:
  Terminal() : fd_(::open("/dev/tty", O_RDWR | O_CLOEXEC)) {
    if (!fd_) return;
    before_ = ::tcgetpgrp(fd_.get());
    if (!put_in_front(::getpgrp())) fd_.reset();
  }
  ~Terminal() {
    if (fd_ && before_ > 0) (void)put_in_front(before_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // -1 if there is none.
  int fd() const { return fd_ ? fd_.get() : -1; }

 private:
  // A background process that does this is stopped, unless it blocks the signal.
  bool put_in_front(pid_t group) const {
    sigset_t stops;
    sigset_t before;
    sigemptyset(&stops);
    sigaddset(&stops, SIGTTOU);
    ::pthread_sigmask(SIG_BLOCK, &stops, &before);
    const bool done = ::tcsetpgrp(fd_.get(), group) == 0;
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return done;
  }

  UniqueFd fd_;
  pid_t before_ = -1;
};

// Something that a person, or a program, may still write to: neither closed nor /dev/null nor a terminal,
// which is taken by its own name.
bool can_be_fed(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || ::isatty(fd) == 1) return false;
  return !(S_ISCHR(info.st_mode) && info.st_rdev == makedev(1, 3));
}

enum class Heard : std::uint8_t { kNothing, kLine, kEnd };

// Reads one line and not a byte more: the rest is the program's.
Heard listen(int fd, const Deadline& deadline) {
  for (;;) {
    pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
    const int count = ::poll(&ready, 1, deadline.poll_millis());
    if (count <= 0) return Heard::kNothing;
    char letter = 0;
    const ssize_t got = ::read(fd, &letter, 1);
    if (got == 0 || (got < 0 && errno != EINTR)) return Heard::kEnd;
    if (got == 1 && letter == '\n') return Heard::kLine;
  }
}

const char* wait_for_somebody(const Deadline& deadline) {
  // Where only ancestors may attach, anybody of this user may, from now on.
  (void)::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  bool fed = can_be_fed(STDIN_FILENO);
  std::optional<Terminal> terminal;
  while (!deadline.expired()) {
    if (base::is_traced()) return "a debugger is attached";
    if (!fed && !terminal) terminal.emplace();
    const int fd = fed ? STDIN_FILENO : terminal->fd();
    const Deadline look = deadline.at_most(kLook);
    const Heard heard = listen(fd, look);
    if (heard == Heard::kLine) return "a line was entered";
    if (heard == Heard::kEnd && fed) fed = false;
    if (heard == Heard::kEnd && !fed && terminal) return "the terminal is gone";
  }
  return "its time has passed";
}

}  // namespace

void breakpoint(int rank, int skip, Duration timeout, const std::source_location& where) {
  const std::shared_ptr<Session> session = current_session("breakpoint");
  const std::shared_ptr<GroupState> all = session->default_group();
  const Rank at{all->rank()};
  if (rank < 0 || rank >= all->size()) {
    throw_error(Status::invalid(cat("rank ", at, ": breakpoint: rank is ", rank,
                                    ", but the default group has ", all->size(), " ranks."),
                                {.op = "breakpoint", .group = all->name()}),
                at);
  }
  check_timeout("breakpoint", timeout, at);
  const std::string place = cat(where.file_name(), ':', where.line());
  if (session->count_breakpoint(place) <= skip) return;

  const RaisedTimeouts raised(*session, timeout);
  if (at.value == rank) {
    kLog.warn(cat("rank ", at, " stops at ", place, ". Attach with: gdb -p ", ::getpid(),
                  ". It goes on when a line is entered, when a debugger lets it, or in ", timeout, "."));
    const char* const why = wait_for_somebody(Clock::steady().in(timeout));
    kLog.warn(cat("rank ", at, " goes on from ", place, ": ", why, "."));
  }
  barrier({.timeout = timeout + kMargin});
}

}  // namespace lockstep::tensor
