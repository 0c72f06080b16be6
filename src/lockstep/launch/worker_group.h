// The ranks of one attempt on this host, from start to the last process that any of them has left behind.
//
// One attempt is one WorkerGroup: it is made, started, watched and destroyed. Its owner runs the loop: it
// calls reap() on SIGCHLD and tick() after each wait, and waits no longer than wake_at().
//
//   running   until every rank's own process has ended
//   sweeping  until what they started is gone too: SIGTERM, then SIGKILL
//   draining  until their output has been read to its end
//   gone
//
// A process that does not die of SIGKILL, because the kernel does not let it, is given up after kUnkillable
// and left behind.
//
// Thread safety: one thread, which is also the one that starts the ranks.
// Does not: decide whether to restart, or talk to other hosts.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/launch/child_process.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/guard.h"
#include "lockstep/launch/rank_output.h"
#include "lockstep/launch/report.h"

namespace lockstep::launch {

// What one rank is started with.
struct WorkerPlan {
  RankPlace place;
  ChildSpec child;  // its stdout and stderr are made at the start
  RankOutput::Plan out;
  RankOutput::Plan error;
  std::string error_file = {};
  std::string torch_error_file = {};
};

class WorkerGroup {
 public:
  struct Setting {
    Poller& poller;
    Console& console;
    const Guard& guard;
    const Clock& clock;
    Duration grace;               // from SIGTERM to SIGKILL
    std::set<pid_t> spared = {};  // children of this process that are none of ours
  };
  explicit WorkerGroup(Setting setting) : setting_(std::move(setting)) {}
  // Kills what is left, at once.
  ~WorkerGroup();
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  // Starts all of them in order. On an error (its cause names the rank) those already started are told to
  // stop, and the loop goes on until gone().
  Status start(std::vector<WorkerPlan> plans);

  // Takes the status of every child that has ended.
  void reap();
  void tick();
  Deadline wake_at() const;
  bool gone() const { return phase_ == Phase::kGone; }

  // The rank that failed first, by index, once that is decided: at once, or within kSettle if it blames a
  // rank that is still running. Ranks that end after stop() do not count.
  const std::optional<std::size_t>& first_failure() const { return first_failure_; }

  // Passes a signal on to every rank that runs.
  void forward(int signal);
  // Asks every rank to end by `signal`; after the grace all that remains is killed. Only the first time.
  void stop(int signal);
  void kill_all();

  std::size_t size() const { return workers_.size(); }
  RankState state(std::size_t index) const;
  const WorkerPlan& plan(std::size_t index) const { return workers_[index].plan; }
  // Includes what is still in the pipe.
  std::vector<std::string> stderr_tail(std::size_t index);
  std::optional<ErrorRecord> error_of(std::size_t index) const;

 private:
  static constexpr Duration kSettle = std::chrono::seconds(1);
  static constexpr Duration kDrain = std::chrono::seconds(1);
  static constexpr Duration kUnkillable = std::chrono::seconds(5);
  static constexpr Duration kRescan = std::chrono::milliseconds(20);

  enum class Phase { kRunning, kSweeping, kDraining, kGone };
  struct Worker {
    WorkerPlan plan;
    pid_t pid = 0;
    base::TimePoint started = {};
    base::TimePoint ended = {};
    std::optional<int> wait_status = {};
    int told = 0;
    bool group_gone = false;
    std::unique_ptr<RankOutput> out = {};
    std::unique_ptr<RankOutput> error = {};
  };

  Status start_one(Worker& worker);
  void on_leader_end(Worker& worker, int wait_status);
  void forget_empty_groups();
  void decide_first_failure();
  void signal_groups(int signal);
  bool all_ended() const;
  bool given_up() const { return give_up_at_ && give_up_at_->expired(); }
  std::vector<pid_t> leftovers() const;
  void sweep();
  void drain();
  void set_paused(bool paused);

  Setting setting_;
  std::vector<Worker> workers_;
  Phase phase_ = Phase::kGone;
  std::vector<std::size_t> failures_;  // in the order of their end
  std::optional<std::size_t> first_failure_;
  std::optional<Deadline> settle_until_;
  std::optional<Deadline> kill_at_;     // set by stop(), or when sweeping begins
  std::optional<Deadline> give_up_at_;  // set once SIGKILL was sent
  std::optional<Deadline> drain_until_;
  std::set<pid_t> swept_;  // leftovers that have had their SIGTERM
};

}  // namespace lockstep::launch
