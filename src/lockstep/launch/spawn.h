// Ranks that a program starts itself, as torch's mp.spawn does.
//
//   Status train(const lockstep::SpawnedRank& rank) { ... }
//
//   int main(int argc, char** argv) {
//     lockstep::Spawner spawner(argc, argv, {{"train", train}});  // a rank runs train here, and exits
//     const lockstep::Status status = spawner.spawn("train", lockstep::WorldSize{4}, {"--lr", "0.1"});
//   }
//
// The program is executed again for each rank: a child that is forked after libtorch has used OpenMP, or from
// a process with threads, hangs sooner or later. A rank has the environment that `lockstep run` gives, so
// rendezvous by env:// works in it; it has the program's own arguments, its stdout and stderr, and no stdin.
// A rank that fails ends the others (SIGTERM, then SIGKILL).
//
// Thread safety: spawn() may be called from any thread. It waits for the ranks; they get SIGKILL when the
// thread that called it ends.
// Errors: the first rank that failed, with the code, cause and message of its own Status, or how it was
// killed. Does not: restart anything; see `lockstep run`.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"

namespace lockstep::launch {

// What a rank is given.
struct SpawnedRank {
  Rank rank;
  WorldSize world_size;
  std::vector<std::string> arguments = {};
  Environment environment = {};  // as the rank's process has it
};

// Its Status is the rank's result. An exception that leaves it becomes a kInternal with its text.
using RankFunction = std::function<Status(const SpawnedRank&)>;

struct SpawnOptions {
  std::optional<Deadline> deadline = {};     // for all ranks to end; kTimeout names those that had not
  Duration grace = std::chrono::seconds(5);  // from SIGTERM to SIGKILL
  std::vector<std::pair<std::string, std::string>> env = {};
  const Clock* clock = &Clock::steady();
};

class Spawner {
 public:
  // First thing in main(). In the process of a rank it runs the rank's function and exits: with 0, or with 1
  // and the error on stderr.
  Spawner(int argc, char** argv, std::map<std::string, RankFunction> functions);

  // Starts `size` ranks that run the function of that name, and waits for all of them.
  // kInvalid if there is no such function. kUnsupported if this process ignores SIGCHLD, and if something in
  // it took the status of a rank by waiting for all children: how the rank has ended is not known then.
  Status spawn(std::string_view name, WorldSize size, std::vector<std::string> arguments = {},
               const SpawnOptions& options = {}) const;

 private:
  std::vector<std::string> argv_;
  std::map<std::string, RankFunction> functions_;
};

// The same without a second execution: `function` may capture what it likes. Only while this process has one
// thread, else kUnsupported.
Status fork_ranks(WorldSize size, const RankFunction& function, const SpawnOptions& options = {});

}  // namespace lockstep::launch

namespace lockstep {
using launch::fork_ranks;
using launch::RankFunction;
using launch::SpawnedRank;
using launch::Spawner;
using launch::SpawnOptions;
}  // namespace lockstep
