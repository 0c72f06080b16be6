// breakpoint(), on worlds of real processes.
#include "lockstep/tensor/breakpoint.h"

#include <poll.h>
#include <pty.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <string>
#include <thread>

#include "lockstep/tensor/tensor_test_support.h"

namespace lockstep::tensor {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::ProcessWorld;

// A pipe whose reading end becomes the stdin of a rank. Both ends stay open in all of them.
class Feed {
 public:
  Feed() { EXPECT_EQ(::pipe(ends_.data()), 0); }
  ~Feed() {
    for (const int end : ends_) ::close(end);
  }
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;
  void become_stdin() const { EXPECT_EQ(::dup2(ends_[0], STDIN_FILENO), STDIN_FILENO); }
  void write(const std::string& text) const {
    EXPECT_EQ(::write(ends_[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

 private:
  std::array<int, 2> ends_{};
};

TEST(Breakpoint, OneRankWaitsForALineAndTheOthersForIt) {
  for (const int size : {1, 2, 3}) {
    const Feed feed;
    run_world(size, [&](int rank) {
      set_timeout(30s);
      const ProcessGroup other = new_group({.timeout = 2h});
      const int stops = size - 1;
      std::thread person;
      if (rank == stops) {
        feed.become_stdin();
        person = std::thread([&] {
          // It is in the breakpoint, and nobody times out meanwhile.
          const Deadline limit = Clock::steady().in(60s);
          while (ProcessGroup().timeout() != 1h && !limit.expired()) ::sched_yield();
          EXPECT_EQ(ProcessGroup().timeout(), 1h);
          EXPECT_EQ(other.timeout(), 2h);
          feed.write("go on\nrest");
        });
      }
      breakpoint(stops);
      EXPECT_EQ(ProcessGroup().timeout(), 30s);
      if (rank != stops) return;
      person.join();
      std::string rest(4, ' ');
      EXPECT_EQ(::read(STDIN_FILENO, rest.data(), rest.size()), 4);
      EXPECT_EQ(rest, "rest") << "no more than the line is taken";
    });
  }
}

TEST(Breakpoint, SkipCountsTheCallsOfOnePlace) {
  const Feed feed;
  run_world(2, [&](int rank) {
    if (rank == 0) {
      feed.become_stdin();
      feed.write("1\n2\n");
    }
    for (int i = 0; i < 5; ++i) breakpoint(0, 3);  // stops at the last two
    if (rank == 0) {
      pollfd more{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
      EXPECT_EQ(::poll(&more, 1, 0), 0);
    }
    breakpoint(0, 1);  // another place
  });
}

TEST(Breakpoint, GoesOnWhenItsTimeHasPassed) {
  const Feed feed;
  run_world(2, [&](int rank) {
    if (rank == 1) feed.become_stdin();
    breakpoint(1, 0, 50ms);
    barrier();
  });
}

TEST(Breakpoint, ARankThatIsNoneIsRefused) {
  expect_error([] { breakpoint(); }, {"breakpoint", "init_process_group()"});
  run_world(2, [](int rank) {
    expect_error([] { breakpoint(2); }, {cat("rank ", rank, ": breakpoint: rank is 2"), "2 ranks"});
    expect_error([] { breakpoint(-1); }, {"rank is -1"});
    barrier();
  });
}

TEST(Breakpoint, GoesOnWhenADebuggerLetsIt) {
  const Feed feed;
  run_world(1, [&](int) {
    feed.become_stdin();
    const pid_t stopped = ::getpid();
    ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    const pid_t debugger = ::fork();
    if (debugger == 0) {
      // Lets go when the rank has ended.
      if (::ptrace(PTRACE_SEIZE, stopped, nullptr, nullptr) != 0) ::_exit(1);
      int status = 0;
      while (::waitpid(stopped, &status, __WALL) >= 0 && !WIFEXITED(status)) {
        if (WIFSTOPPED(status)) ::ptrace(PTRACE_CONT, stopped, nullptr, WSTOPSIG(status));
      }
      ::_exit(0);
    }
    breakpoint();
  });
}

// In a child that has a terminal of its own, as a job that was started by hand. `talk` is the person at it.
void at_a_terminal(const std::function<bool()>& job, const std::function<void(int terminal)>& talk) {
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(job() ? 0 : 1);
  talk(terminal);
  // What it still says is read, so that it never waits for us.
  std::array<char, 4096> text{};
  while (::read(terminal, text.data(), text.size()) > 0) {
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::close(terminal);
}

// What comes up to `words`, and maybe more, which is left in `said`.
void read_until(int terminal, const std::string& words, std::string& said) {
  std::array<char, 4096> text{};
  while (said.find(words) == std::string::npos) {
    const ssize_t got = ::read(terminal, text.data(), text.size());
    if (got <= 0) break;
    said.append(text.data(), static_cast<std::size_t>(got));
  }
  ASSERT_THAT(said, ::testing::HasSubstr(words));
  said.erase(0, said.find(words) + words.size());
}

TEST(Breakpoint, TheTerminalIsTheRanksUntilItGoesOn) {
  at_a_terminal(
      [] {
        run_world(2, [](int) {
          breakpoint(1);
          breakpoint(0);
        });
        // The terminal is given back.
        return !::testing::Test::HasFailure() && ::tcgetpgrp(STDIN_FILENO) == ::getpgrp();
      },
      [](int terminal) {
        std::string said;
        for (const int rank : {1, 0}) {
          read_until(terminal, cat("rank ", rank, " stops at "), said);
          EXPECT_EQ(::write(terminal, "\n", 1), 1);
          read_until(terminal, cat("rank ", rank, " goes on"), said);
        }
      });
}

}  // namespace
}  // namespace lockstep::tensor
