// One side of a comparison: n ranks of one library, each a process that is told over a socket what to run.
//
// Thread safety: none. Between questions the ranks sleep in a read. The destructor ends their sockets, at
// which they exit, and kills what is left after two seconds. If the command itself is killed, the ranks go
// with it.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/launch/worker_environment.h"
#include "tools/bench/interruption.h"
#include "tools/bench/two_hosts.h"

namespace lockstep::bench {

// One process to start: a rank, or mpirun with all of them.
struct SideProcess {
  std::vector<std::string> argv = {};  // the program is looked for in PATH
  launch::Variables environment = {};
  int host = 0;
  std::vector<int> cpus = {};  // bound to these; empty: not bound
};

struct SideOptions {
  std::string name = {};    // "gloo"
  std::string socket = {};  // a path; the processes are told to connect there
  int ranks = 0;
  std::vector<SideProcess> processes = {};
  TwoHosts* hosts = nullptr;  // where the processes live; nothing: all here
};

class BenchSide {
 public:
  // Returns once every rank has said who it is. kDisconnected if one ends before that: what it wrote to
  // stderr is on ours.
  static Result<std::unique_ptr<BenchSide>> start(const SideOptions& options, Interruption& interruption,
                                                  const Deadline& deadline);
  BenchSide(const BenchSide&) = delete;
  BenchSide& operator=(const BenchSide&) = delete;
  ~BenchSide();

  const std::string& name() const { return name_; }
  const std::string& version() const { return version_; }  // as rank 0 says it

  // The same line to every rank; their answers, by rank.
  Result<std::vector<std::string>> ask(const std::string& line, const Deadline& deadline);

 private:
  struct Process {
    pid_t pid = -1;
    UniqueFd pidfd = {};
  };
  struct Link {
    UniqueFd fd = {};
    std::string received = {};
  };

  BenchSide(std::string name, Interruption& interruption)
      : name_(std::move(name)), interruption_(interruption) {}
  Status start_processes(const SideOptions& options);
  Status accept_ranks(const UniqueFd& listener, int ranks, const Deadline& deadline);
  Status greet(Link link, const Deadline& deadline);
  Result<std::string> read_line(Link& link, const Deadline& deadline);
  // Until `fd` is readable. kDisconnected if a process of this side has ended, kAborted on a signal.
  Status wait_readable(int fd, const Deadline& deadline);

  const std::string name_;
  Interruption& interruption_;
  std::string version_;
  std::vector<Process> processes_;
  std::vector<Link> links_;  // by rank
};

using BenchSides = std::vector<std::unique_ptr<BenchSide>>;  // ours first

}  // namespace lockstep::bench
