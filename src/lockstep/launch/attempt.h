// One attempt of a job on one host: from opening its round until its last process is gone.
//
// Thread safety: one thread, the launcher's.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/launch/coordinator.h"
#include "lockstep/launch/signals.h"
#include "lockstep/launch/worker_group.h"
#include "lockstep/launch/worker_plan.h"

namespace lockstep::launch {

// What all attempts of a launcher share. Everything outlives them.
struct LaunchContext {
  const PlanInput& input;
  const Clock& clock;
  Poller& poller;
  Console& console;
  SignalChannel& signals;
  const Guard& guard;
  Coordinator& coordinator;
  std::set<pid_t> spared;  // children that the process had before
  bool hurried = false;    // a signal came while the job was ending: nobody waits for the output to be read
};

struct Outcome {
  enum class Kind { kDone, kFailed, kStopped, kLost };
  Kind kind = Kind::kDone;
  FailureReport report = {};  // kFailed
  OtherRanks others = {};     // kFailed
  int max_restarts = 0;       // as the agents have agreed
  int signal = 0;             // kStopped
  std::string host = {};      // kStopped: where
  Status error = {};          // kLost
  bool began = false;         // the round was opened: all agents had come
};

class Attempt {
 public:
  Attempt(LaunchContext& context, std::uint64_t epoch);
  ~Attempt();
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  // An error is the launcher's own: it cannot wait for its descriptors.
  Result<Outcome> run();

 private:
  void on_signals();
  void on_ending_signal(int signal);
  void on_events();
  void on_round(Round round);
  void conclude(Outcome outcome, int stop_signal);
  void report_progress();
  FailureReport describe_failure(std::size_t index);
  FailureReport describe_failed_start(Rank rank, const Status& error) const;
  bool finished() const { return outcome_ && (!started_ || group_.gone()); }

  LaunchContext& context_;
  const std::uint64_t epoch_;
  WorkerGroup group_;
  Round round_;
  bool started_ = false;
  bool reported_ = false;  // the end of this host's ranks
  std::optional<std::uint64_t> oom_kills_before_;
  std::optional<Outcome> outcome_;
};

}  // namespace lockstep::launch
