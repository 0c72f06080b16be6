// What `lockstep run` is told, as values, and how the words of its command line become them.
//
// Thread safety: values and pure functions.
// Errors: kInvalid, with one sentence that names the option, what was given and what is expected.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/net.h"
#include "lockstep/base/status.h"
#include "lockstep/base/topology.h"

namespace lockstep::launch {

// Ranks on this host: a number, or what to count.
struct ProcessCount {
  enum class Kind { kNumber, kAuto, kCpu, kGpu };
  Kind kind = Kind::kNumber;
  int number = 1;

  bool operator==(const ProcessCount&) const = default;
};
constexpr int kMaxLocalRanks = 4096;
constexpr int kMaxNodes = 4096;
Result<ProcessCount> parse_process_count(std::string_view text);

// Which of a rank's two streams something applies to, as torchrun counts them: 0 none, 1 stdout, 2 stderr, 3
// both.
struct Streams {
  bool out = false;
  bool error = false;

  bool operator==(const Streams&) const = default;
};
// "3" for every local rank, or "0:1,2:3" by local rank (the others: none).
struct StreamChoice {
  Streams all = {};
  std::map<int, Streams> by_local_rank = {};

  Streams of(int local_rank) const;
  bool any() const;
  bool operator==(const StreamChoice&) const = default;
};
Result<StreamChoice> parse_stream_choice(std::string_view option, std::string_view text);

// How the program is started.
enum class ProgramKind {
  kByName,  // a name that ends in .py is given to Python, anything else is executed
  kModule,  // -m: the name of a Python module
  kDirect,  // --no-python: executed, whatever its name
};

struct RunOptions {
  // What to run.
  std::vector<std::string> command = {};  // the program and its arguments
  ProgramKind kind = ProgramKind::kByName;
  std::string python = {};  // the interpreter; empty: PYTHON_EXEC, else python3
  std::vector<std::pair<std::string, std::string>> env = {};

  // Where.
  ProcessCount nproc = {};
  int nnodes = 1;
  std::optional<int> node_rank = {};  // empty: by arrival
  std::optional<base::Endpoint> rdzv_endpoint = {};
  std::string rdzv_id = {};     // empty: made up
  std::string local_addr = {};  // node 0: what it binds; empty: the endpoint's address
  std::string role = "default";
  base::Binding cpu_binding = base::Binding::kNone;

  // When something fails.
  int max_restarts = 0;
  Duration restart_delay = std::chrono::seconds(1);  // doubles with each restart, up to kMaxRestartDelay
  Duration monitor_interval =
      std::chrono::milliseconds(100);                    // between looks at the other agents; 500 ms at most
  Duration join_timeout = std::chrono::minutes(5);       // for all agents to come
  Duration shutdown_timeout = std::chrono::seconds(30);  // from SIGTERM to SIGKILL
  std::vector<int> signals = {};                         // forwarded; see signals.h

  // Output.
  std::string log_dir = {};  // empty: no log files
  StreamChoice redirects = {};
  StreamChoice tee = {};
  std::string prefix = "[rank {rank}] ";
  std::vector<int> local_ranks_filter = {};  // empty: all are shown

  // Security.
  std::string secret_file = {};
  bool insecure = false;

  bool dry_run = false;
};
constexpr Duration kMaxRestartDelay = std::chrono::seconds(60);

// The words of the command line, before anything is made of them. Empty: not given.
struct RunWords {
  std::vector<std::string> command = {};
  bool module = false;
  bool no_python = false;
  std::string python, nproc, nnodes, node_rank, rdzv_endpoint, rdzv_id, rdzv_backend, rdzv_conf;
  std::string master_addr, master_port, local_addr, role, cpu_binding;
  std::vector<std::string> env = {};
  std::string max_restarts, restart_delay, monitor_interval, join_timeout, shutdown_timeout, signals;
  std::string log_dir, redirects, tee, local_ranks_filter, secret_file;
  std::optional<std::string> prefix = {};
  bool standalone = false;
  bool insecure = false;
  bool dry_run = false;
};
// Checks each word alone and all of them together.
Result<RunOptions> parse_run_options(const RunWords& words);

// How long to wait before restart number `restart` (1 is the first).
Duration restart_delay(Duration first, int restart);

}  // namespace lockstep::launch
