#include "lockstep/launch/child_process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "lockstep/base/text.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::launch {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

int wait_for(pid_t pid) {
  int status = -1;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

struct Pipe {
  Pipe() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reader = UniqueFd(ends[0]);
    writer = UniqueFd(ends[1]);
  }
  std::string read_all() {
    writer.reset();
    std::string text;
    std::array<char, 4096> buffer;
    for (ssize_t got = 0; (got = read(reader.get(), buffer.data(), buffer.size())) > 0;) {
      text.append(buffer.data(), static_cast<std::size_t>(got));
    }
    return text;
  }
  UniqueFd reader, writer;
};

// What a shell script prints.
std::string output_of(const std::string& script, ChildSpec spec = {}) {
  Pipe pipe;
  spec.path = "/bin/sh";
  spec.argv = {"sh", "-c", script};
  spec.environment.emplace("PATH", "/usr/bin:/bin");
  spec.stdout_fd = pipe.writer.get();
  const auto pid = start_child(spec);
  EXPECT_OK(pid);
  std::string text = pipe.read_all();
  EXPECT_EQ(wait_for(*pid), 0);
  return text;
}

TEST(StartChild, HasExactlyTheGivenEnvironmentAndArguments) {
  EXPECT_EQ(output_of("echo $A/$HOME", {.environment = {{"A", "x y"}}}), "x y/\n");
}

TEST(StartChild, LeadsAProcessGroupOfItsOwn) {
  EXPECT_EQ(output_of("ps -o pid= -o pgid= -p $$ | awk '{print $1 == $2}'"), "1\n");
}

TEST(StartChild, InheritsOnlyTheDescriptorsItWasGiven) {
  // High numbers, so that the shell's own are not taken for them.
  const UniqueFd wanted(fcntl(0, F_DUPFD_CLOEXEC, 60));
  const UniqueFd unwanted(fcntl(0, F_DUPFD, 70));  // not close-on-exec, as from a careless library
  const std::string list =
      output_of("for fd in /proc/$$/fd/*; do echo ${fd##*/}; done", {.inherited = {wanted.get()}});
  EXPECT_THAT(list, HasSubstr(cat("\n", wanted.get(), "\n")));
  EXPECT_THAT(list, ::testing::Not(HasSubstr(cat("\n", unwanted.get(), "\n"))));
}

TEST(StartChild, StartsWithAnEmptySignalMask) {
  sigset_t blocked, old;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &blocked, &old);
  const std::string mask = output_of("grep SigBlk /proc/self/status");
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  EXPECT_EQ(mask, "SigBlk:\t0000000000000000\n");
}

TEST(StartChild, GetsItsOwnLimitOfOpenFiles) {
  EXPECT_EQ(output_of("ulimit -n", {.open_files = rlimit{.rlim_cur = 77, .rlim_max = 99}}), "77\n");
}

TEST(StartChild, IsBoundToItsCpus) {
  EXPECT_EQ(output_of("grep Cpus_allowed_list /proc/self/status", {.cpus = {0}}), "Cpus_allowed_list:\t0\n");
}

TEST(StartChild, SaysWhyAFileCannotBeExecuted) {
  const std::string path =
      std::filesystem::path(::testing::TempDir()) / ("child_" + std::to_string(getpid()));
  const auto start = [&path](std::string_view content) {
    std::ofstream(path, std::ios::trunc) << content;
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return start_child({.path = path, .argv = {path}});
  };
  EXPECT_THAT(start("neither"), StatusIs(Code::kUnsupported, HasSubstr("starts with #!")));
  EXPECT_THAT(start("#!/no/such/interpreter\n"), StatusIs(Code::kUnsupported, HasSubstr("interpreter")));
  std::filesystem::permissions(path, std::filesystem::perms::owner_read);
  EXPECT_THAT(start_child({.path = path, .argv = {path}}), StatusIs(Code::kUnsupported, HasSubstr("denied")));
  std::filesystem::remove(path);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child that failed to start was not reaped";
}

TEST(SignalGroup, ReachesTheWholeGroupAndAnEmptyOneIsNoError) {
  Pipe pipe;
  ASSERT_OK_AND_ASSIGN(const pid_t pid, start_child({.path = "/bin/sh",
                                                     .argv = {"sh", "-c", "sleep 1000 & echo $!; wait"},
                                                     .environment = {{"PATH", "/usr/bin:/bin"}},
                                                     .stdout_fd = pipe.writer.get()}));
  char digit = 0;
  while (read(pipe.reader.get(), &digit, 1) == 1 && digit != '\n') {
  }
  EXPECT_TRUE(group_exists(pid));
  signal_group(pid, SIGKILL);
  EXPECT_EQ(pipe.read_all(), "");  // the sleep held it open too
  EXPECT_EQ(wait_for(pid), SIGKILL);
  signal_group(pid, SIGKILL);
}

}  // namespace
}  // namespace lockstep::launch
