#include "lockstep/backend/native/monitor.h"

#include <algorithm>
#include <utility>

#include "lockstep/backend/native/watcher.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/thread.h"

namespace lockstep::backend {

Result<std::unique_ptr<Monitor>> Monitor::start(MonitorOptions options, transport::shm::Domain& domain,
                                                transport::link::Door* door, store::Store& store,
                                                const Deadline& deadline) {
  LOCKSTEP_ASSIGN(auto watcher, Watcher::make(std::move(options), domain, door, store, deadline));
  std::unique_ptr<Monitor> monitor(new Monitor(std::move(watcher), base::fork_generation()));
  LOCKSTEP_ASSIGN(
      monitor->thread_, base::start_thread("lockstep-watch", [&self = *monitor] {
        while (!self.stop_) {
          {
            const MutexLock lock(self.looking_);
            self.watcher_->look([&self](Rank lost, const Status& status) { self.hear_of(lost, status); });
          }
          self.tell_of_leaves();
          self.look_at_groups();
          self.watcher_->sleep();
        }
      }));
  return monitor;
}

Monitor::Monitor(std::unique_ptr<Watcher> watcher, std::uint64_t fork_generation)
    : fork_generation_(fork_generation), watcher_(std::move(watcher)) {}

Monitor::~Monitor() {
  if (base::fork_generation() != fork_generation_) {
    // The thread, and the other ends of the sockets, are the parent's.
    static_cast<void>(watcher_.release());
    base::abandon(thread_);
    return;
  }
  leave();
}

void Monitor::leave() {
  stop_ = true;
  if (!thread_.joinable()) return;
  watcher_->wake();
  thread_.join();
  watcher_->say_goodbye();
}

void Monitor::look_at_groups() {
  const MutexLock lock(mutex_);
  for (auto& [id, group] : groups_) {
    if (!group.hear) continue;
    if (const Status failure = group.look(); !failure.ok()) std::exchange(group.hear, nullptr)(failure);
  }
}

void Monitor::tell_of_leaves() {
  HearLeft hear;
  {
    const MutexLock lock(mutex_);
    hear = hear_left_;
  }
  if (!hear) return;
  const LeftRanks& left = *watcher_->left();
  for (std::size_t i = 0; i < left.size(); ++i) {
    const Rank rank(static_cast<int>(i));
    if (left[i] && !told_left_.contains(rank) && hear(rank)) told_left_.insert(rank);
  }
}

void Monitor::when_left(HearLeft hear) {
  const MutexLock lock(mutex_);
  hear_left_ = std::move(hear);
}

void Monitor::watch(std::uint64_t group, const std::vector<Rank>& members, Hear hear,
                    std::function<Status()> look) {
  const MutexLock lock(mutex_);
  for (const Rank member : members) {
    const auto lost = lost_.find(member);
    if (lost != lost_.end()) hear(lost->second);
  }
  groups_[group] = {members, std::move(hear), std::move(look)};
}

std::map<Rank, Status> Monitor::lost(const std::vector<Rank>& members) const {
  const MutexLock lock(mutex_);
  std::map<Rank, Status> found;
  for (const Rank member : members) {
    if (const auto lost = lost_.find(member); lost != lost_.end()) found.insert(*lost);
  }
  return found;
}

void Monitor::leave_out(const std::vector<Rank>& ranks, const Status& why) {
  const MutexLock looking(looking_);
  watcher_->leave_out(ranks);
  const MutexLock lock(mutex_);
  for (const Rank rank : ranks) lost_.try_emplace(rank, why);
}

Monitor::Pause::Pause(Monitor& monitor) : monitor_(monitor) {
  const MutexLock lock(monitor_.looking_);
  monitor_.watcher_->pause();
}

Monitor::Pause::~Pause() {
  const MutexLock lock(monitor_.looking_);
  monitor_.watcher_->resume();
}

bool Monitor::has_left(Rank rank) const { return watcher_->has_left(rank); }

std::shared_ptr<const Monitor::LeftRanks> Monitor::left() const { return watcher_->left(); }

void Monitor::forget(std::uint64_t group) {
  const MutexLock lock(mutex_);
  groups_.erase(group);
}

void Monitor::hear_of(Rank lost, const Status& status) {
  const MutexLock lock(mutex_);
  lost_.try_emplace(lost, status);
  for (auto& [id, group] : groups_) {
    const bool member = std::find(group.members.begin(), group.members.end(), lost) != group.members.end();
    if (member && group.hear) group.hear(status);
  }
}

}  // namespace lockstep::backend
