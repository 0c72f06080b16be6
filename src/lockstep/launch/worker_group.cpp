#include "lockstep/launch/worker_group.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>

#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/descendants.h"

namespace lockstep::launch {

WorkerGroup::~WorkerGroup() {
  if (phase_ == Phase::kGone) return;
  signal_groups(SIGKILL);
  for (const Worker& worker : workers_) {
    if (worker.pid == 0 || worker.wait_status) continue;
    while (waitpid(worker.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    setting_.guard.remove_group(worker.pid);
  }
}

Status WorkerGroup::start(std::vector<WorkerPlan> plans) {
  workers_.reserve(plans.size());
  phase_ = Phase::kRunning;
  for (WorkerPlan& plan : plans) {
    Worker worker{.plan = std::move(plan)};
    Status started = start_one(worker);
    const Rank rank = worker.plan.place.rank;
    if (!started.ok()) {
      stop(SIGTERM);
      Cause cause = started.cause();
      cause.rank = rank;
      return started.with_cause(std::move(cause));
    }
    workers_.push_back(std::move(worker));
  }
  return {};
}

Status WorkerGroup::start_one(Worker& worker) {
  LOCKSTEP_ASSIGN(worker.out, RankOutput::open(worker.plan.out, setting_.poller, setting_.console));
  LOCKSTEP_ASSIGN(worker.error, RankOutput::open(worker.plan.error, setting_.poller, setting_.console));
  ChildSpec& child = worker.plan.child;
  child.stdout_fd = worker.out->child_end();
  child.stderr_fd = worker.error->child_end();
  worker.started = setting_.clock.now();
  LOCKSTEP_ASSIGN(worker.pid, start_child(child));
  setting_.guard.add_group(worker.pid);
  worker.out->close_child_end();
  worker.error->close_child_end();
  return {};
}

void WorkerGroup::reap() {
  bool orphans = false;
  for (;;) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid < 0 && errno == EINTR) continue;
    if (pid <= 0) break;
    const auto worker = std::find_if(workers_.begin(), workers_.end(),
                                     [pid](const Worker& candidate) { return candidate.pid == pid; });
    if (worker != workers_.end() && !worker->wait_status) {
      on_leader_end(*worker, status);
    } else {
      orphans = true;
    }
  }
  if (orphans) forget_empty_groups();
  decide_first_failure();
}

void WorkerGroup::on_leader_end(Worker& worker, int wait_status) {
  worker.wait_status = wait_status;
  worker.ended = setting_.clock.now();
  worker.group_gone = !group_exists(worker.pid);
  if (worker.group_gone) setting_.guard.remove_group(worker.pid);
  if (wait_status != 0 && worker.told == 0) {
    failures_.push_back(static_cast<std::size_t>(&worker - workers_.data()));
  }
}

// Once the last process of a group was reaped its number may be given to a stranger.
void WorkerGroup::forget_empty_groups() {
  for (Worker& worker : workers_) {
    if (!worker.wait_status || worker.group_gone || group_exists(worker.pid)) continue;
    worker.group_gone = true;
    setting_.guard.remove_group(worker.pid);
  }
}

void WorkerGroup::decide_first_failure() {
  if (first_failure_ || failures_.empty()) return;
  std::vector<EndedRank> ended;
  ended.reserve(failures_.size());
  for (const std::size_t index : failures_) {
    ended.push_back({.rank = workers_[index].plan.place.rank, .error = error_of(index)});
  }
  const std::size_t chosen = choose_first_failure(ended);
  const bool may_settle = blamed_rank(ended[chosen]).has_value() && phase_ == Phase::kRunning;
  if (may_settle && !settle_until_) settle_until_ = setting_.clock.in(kSettle);
  if (may_settle && !settle_until_->expired()) return;
  first_failure_ = failures_[chosen];
  settle_until_.reset();
}

void WorkerGroup::forward(int signal) {
  for (const Worker& worker : workers_) {
    if (!worker.wait_status) signal_group(worker.pid, signal);
  }
}

void WorkerGroup::stop(int signal) {
  if (kill_at_) return;
  kill_at_ = setting_.clock.in(setting_.grace);
  signal_groups(signal);
}

void WorkerGroup::kill_all() {
  if (!kill_at_) kill_at_ = setting_.clock.in(Duration::zero());
  if (!give_up_at_) give_up_at_ = setting_.clock.in(kUnkillable);
  signal_groups(SIGKILL);
}

void WorkerGroup::signal_groups(int signal) {
  for (Worker& worker : workers_) {
    if (worker.pid == 0 || worker.group_gone) continue;
    if (!worker.wait_status) worker.told = signal;
    signal_group(worker.pid, signal);
    signal_group(worker.pid, SIGCONT);  // one that is stopped would not hear of it
  }
}

void WorkerGroup::tick() {
  set_paused(setting_.console.congested());
  if (settle_until_ && settle_until_->expired()) decide_first_failure();
  if (kill_at_ && kill_at_->expired() && !give_up_at_) kill_all();
  if (phase_ == Phase::kRunning && (all_ended() || given_up())) {
    phase_ = Phase::kSweeping;
    if (give_up_at_) give_up_at_ = setting_.clock.in(kUnkillable);  // what is swept has its own time to die
    decide_first_failure();                                         // there is nobody left to wait for
  }
  if (phase_ == Phase::kSweeping) sweep();
  if (phase_ == Phase::kDraining) drain();
}

bool WorkerGroup::all_ended() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const Worker& worker) { return worker.wait_status.has_value(); });
}

std::vector<pid_t> WorkerGroup::leftovers() const {
  std::vector<pid_t> out;
  for (const pid_t pid : child_processes()) {
    if (pid != setting_.guard.pid() && !setting_.spared.contains(pid)) out.push_back(pid);
  }
  return out;
}

void WorkerGroup::sweep() {
  const std::vector<pid_t> left = leftovers();
  if (left.empty() || given_up()) {
    if (!left.empty()) {
      setting_.console.say(cat("process ", left.front(), " and ", left.size() - 1,
                               " more cannot be killed and are left behind"));
    }
    phase_ = Phase::kDraining;
    drain_until_ = setting_.clock.in(kDrain);
    return;
  }
  if (!kill_at_) kill_at_ = setting_.clock.in(setting_.grace);
  // What a rank has left in its group, and what has left the group: the latter are our children by now.
  for (const pid_t pid : left) {
    if (give_up_at_) {
      kill(pid, SIGKILL);
    } else if (swept_.insert(pid).second) {
      kill(pid, SIGTERM);
      kill(pid, SIGCONT);
    }
  }
}

void WorkerGroup::drain() {
  const auto for_each_output = [this](auto&& call) {
    for (Worker& worker : workers_) {
      if (worker.out) call(*worker.out);
      if (worker.error) call(*worker.error);
    }
  };
  bool finished = true;
  for_each_output([&](RankOutput& output) { finished = finished && output.finished(); });
  // Also while the console takes no more: what the pipes hold is bounded, and the console keeps it for its
  // reader.
  if (!finished && drain_until_->expired()) {
    for_each_output([](RankOutput& output) { output.abandon(); });
    finished = true;
  }
  if (finished) phase_ = Phase::kGone;
}

void WorkerGroup::set_paused(bool paused) {
  for (Worker& worker : workers_) {
    if (worker.out) worker.out->set_paused(paused);
    if (worker.error) worker.error->set_paused(paused);
  }
}

Deadline WorkerGroup::wake_at() const {
  Deadline at = setting_.clock.in(std::chrono::hours(1));
  const auto consider = [&at](const std::optional<Deadline>& deadline) {
    if (deadline && deadline->at() < at.at()) at = *deadline;
  };
  consider(settle_until_);
  if (!give_up_at_) consider(kill_at_);
  if (phase_ == Phase::kRunning) consider(give_up_at_);
  if (phase_ == Phase::kDraining) consider(drain_until_);
  if (phase_ == Phase::kSweeping) at = at.at_most(kRescan);
  return at;
}

RankState WorkerGroup::state(std::size_t index) const {
  const Worker& worker = workers_[index];
  return {.rank = worker.plan.place.rank,
          .local_rank = worker.plan.place.local_rank,
          .host = worker.plan.place.host,
          .pid = worker.pid,
          .wait_status = worker.wait_status,
          .told = worker.told,
          .ran = (worker.wait_status ? worker.ended : setting_.clock.now()) - worker.started};
}

std::vector<std::string> WorkerGroup::stderr_tail(std::size_t index) {
  workers_[index].error->read_available();
  return workers_[index].error->tail();
}

std::optional<ErrorRecord> WorkerGroup::error_of(std::size_t index) const {
  const WorkerPlan& plan = workers_[index].plan;
  for (const std::string& path : {plan.error_file, plan.torch_error_file}) {
    if (path.empty() || access(path.c_str(), F_OK) != 0) continue;
    auto record = base::read_error_file(path);
    if (record.ok()) return *std::move(record);
  }
  return std::nullopt;
}

}  // namespace lockstep::launch
