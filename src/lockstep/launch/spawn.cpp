#include "lockstep/launch/spawn.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "lockstep/base/bytes.h"
#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/child_process.h"
#include "lockstep/launch/spawn_assignment.h"
#include "lockstep/launch/spawned_ranks.h"

namespace lockstep::launch {
namespace {

// Names a memfd with an Assignment, in the environment of a child until it has read it.
constexpr const char* kSpawnVariable = "LOCKSTEP_SPAWN_FD";

Result<UniqueFd> write_assignment(const Assignment& assignment) {
  LOCKSTEP_ASSIGN(const Buffer bytes, assignment_to_bytes(assignment));
  UniqueFd memory(memfd_create("lockstep-spawn", MFD_CLOEXEC));
  if (!memory) return Status::from_errno("the memory for a rank's arguments cannot be made", errno);
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t wrote =
        pwrite(memory.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return Status::from_errno("a rank's arguments cannot be written", errno);
    done += static_cast<std::size_t>(wrote);
  }
  return memory;
}

// `given` is the value of kSpawnVariable.
Result<Assignment> read_assignment(const std::string& given) {
  const Status wrong =
      Status::invalid(cat(kSpawnVariable, "=", base::quoted(given),
                          " does not name the memory that a spawned rank is given: unset it"));
  const int fd = base::parse_integer<int>(given).value_or(-1);
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size < 0 ||
      static_cast<std::uint64_t>(info.st_size) > kMaxAssignment) {
    return wrong;
  }
  Buffer bytes(static_cast<std::size_t>(info.st_size));
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t got = pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return wrong;
    done += static_cast<std::size_t>(got);
  }
  auto assignment = assignment_from_bytes(bytes);
  if (!assignment.ok()) return wrong;
  // What this rank starts is no rank of the parent's.
  unsetenv(kSpawnVariable);
  close(fd);
  return assignment;
}

Status call(const RankFunction& function, const SpawnedRank& rank) {
  try {
    return function(rank);
  } catch (const std::exception& error) {
    return Status::internal(cat("an exception was not caught: ", error.what()));
  } catch (...) {
    return Status::internal("an exception that is no std::exception was not caught");
  }
}

// Runs a rank to its end, and leaves its error where the parent looks. The exit code.
int run_rank(const RankFunction& function, const SpawnedRank& rank) {
  const Status status = call(function, rank);
  if (status.ok()) return 0;
  std::fputs(cat("rank ", rank.rank, ": ", status.text(), "\n").c_str(), stderr);
  const std::string path = rank.environment.error_file.value_or("");
  if (!path.empty() && !base::write_error_file(path, status).ok()) {
    std::fputs("the error could not be passed on to the parent\n", stderr);
  }
  return 1;
}

SpawnedRank describe(const Environment& environment, std::vector<std::string> arguments) {
  return {.rank = Rank{environment.rank.value_or(0)},
          .world_size = WorldSize{environment.world_size.value_or(1)},
          .arguments = std::move(arguments),
          .environment = environment};
}

[[noreturn]] void exit_with(const Status& error) {
  std::fputs(cat("lockstep: ", error.message(), "\n").c_str(), stderr);
  std::exit(2);
}

// In the process of a rank. `given` is the value of kSpawnVariable.
[[noreturn]] void be_a_rank(const Environment& environment, const std::string& given,
                            const std::map<std::string, RankFunction>& functions) {
  const auto assignment = read_assignment(given);
  if (!assignment.ok()) exit_with(assignment.status());
  const auto function = functions.find(assignment->function);
  if (function == functions.end()) {
    exit_with(Status::invalid(
        cat("this program has no function ", base::quoted(assignment->function), " for spawned ranks")));
  }
  std::exit(run_rank(function->second, describe(environment, assignment->arguments)));
}

}  // namespace

Spawner::Spawner(int argc, char** argv, std::map<std::string, RankFunction> functions)
    : argv_(argv, argv + argc), functions_(std::move(functions)) {
  const auto environment = Environment::read();
  if (!environment.ok()) return;  // spawn() says so; the parent has checked it for a rank
  const auto found = environment->all.find(kSpawnVariable);
  if (found != environment->all.end()) be_a_rank(*environment, found->second, functions_);
}

Status Spawner::spawn(std::string_view name, WorldSize size, std::vector<std::string> arguments,
                      const SpawnOptions& options) const {
  if (!functions_.contains(std::string(name))) {
    return Status::invalid(
        cat("there is no function ", base::quoted(name), " to spawn: give it to the Spawner"));
  }
  LOCKSTEP_ASSIGN(const Environment environment, Environment::read());
  LOCKSTEP_ASSIGN(const UniqueFd assignment,
                  write_assignment({.function = std::string(name), .arguments = std::move(arguments)}));
  const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null) return Status::from_errno("/dev/null cannot be opened", errno);
  LOCKSTEP_ASSIGN(SpawnedRanks ranks, SpawnedRanks::make(size, environment.all, options));
  for (Rank rank; rank.value < size.value; ++rank.value) {
    SpawnedRanks::Grant grant = ranks.grant(rank);
    grant.environment[kSpawnVariable] = cat(assignment.get());
    grant.inherited.push_back(assignment.get());
    LOCKSTEP_ASSIGN(const pid_t pid, start_child({.path = "/proc/self/exe",
                                                  .argv = argv_,
                                                  .environment = std::move(grant.environment),
                                                  .stdin_fd = null.get(),
                                                  .inherited = std::move(grant.inherited)}));
    LOCKSTEP_TRY(ranks.add(rank, pid));
  }
  return ranks.wait();
}

Status fork_ranks(WorldSize size, const RankFunction& function, const SpawnOptions& options) {
  if (const int threads = base::thread_count(); threads != 1) {
    return Status::unsupported(
        cat("this process has ", threads,
            " threads, and a fork of it could wait for ever on a lock that one of them held: "
            "use a Spawner, before or after"));
  }
  LOCKSTEP_ASSIGN(const Environment environment, Environment::read());
  LOCKSTEP_ASSIGN(SpawnedRanks ranks, SpawnedRanks::make(size, environment.all, options));
  const pid_t parent = getpid();
  for (Rank rank; rank.value < size.value; ++rank.value) {
    const SpawnedRanks::Grant grant = ranks.grant(rank);
    std::fflush(nullptr);  // or the child would write it a second time
    const pid_t pid = fork();
    if (pid < 0) return Status::from_errno("a process cannot be forked", errno);
    if (pid == 0) {
      setpgid(0, 0);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      clearenv();  // what an outer launcher has set is not for this rank
      for (const auto& [name, value] : grant.environment) setenv(name.c_str(), value.c_str(), 1);
      const auto own = Environment::parse(grant.environment);
      const int code = own.ok() ? run_rank(function, describe(*own, {})) : 2;
      std::fflush(nullptr);
      _exit(code);  // the parent's statics and atexit handlers are the parent's
    }
    setpgid(pid, pid);  // both do it, so that it is done whoever comes first
    LOCKSTEP_TRY(ranks.add(rank, pid));
  }
  return ranks.wait();
}

}  // namespace lockstep::launch
