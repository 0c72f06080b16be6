// The Monitor of a process watches the other ranks of its world, on a thread of its own, and tells the groups
// of those that have died, have stopped, or cannot be reached any more.
//
// On one host: a process's end is seen by its pidfd, a stopped one by its pulse, a counter in shared memory
// that every monitor counts up. Between hosts: the lowest living rank of each host is its speaker. Speakers
// keep a socket to each other, on which they say that they live and whom of their host they have lost; what a
// speaker hears it writes beside its pulse, where its neighbours read it. When a speaker is lost the next one
// takes over. One that leaves while a speaker of another host cannot hear it says so in the store.
// docs/failures.md tells the whole story.
//
// A process that is traced (a debugger) is not stalled; of the time in which a monitor was itself late only a
// part counts.
//
// Thread safety: any thread.
// Does not: end a group by itself; whoever hears of a loss does.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/store/member.h"
#include "lockstep/store/store.h"
#include "lockstep/transport/link/door.h"
#include "lockstep/transport/shm/domain.h"

namespace lockstep::backend {

struct MonitorOptions {
  // Behaviour.
  transport::Identity identity = {};
  store::Members members = {};                                   // by rank
  std::vector<int> host_of = {};                                 // by rank; equal for ranks that share memory
  std::vector<std::vector<base::SocketAddress>> addresses = {};  // of the ranks' doors; empty on one host
  Duration stall_after = std::chrono::seconds(5);                // how long a rank may be silent
  store::Look look = {};                                         // what ends the wait for places
};

class Monitor {
 public:
  // Every rank calls it; places meet in `store`. `domain`, `door` and `store` outlive it; `door` is nothing
  // on one host.
  static Result<std::unique_ptr<Monitor>> start(MonitorOptions options, transport::shm::Domain& domain,
                                                transport::link::Door* door, store::Store& store,
                                                const Deadline& deadline);
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  using Hear = std::function<void(const Status&)>;
  // `hear` is called, on the monitor's thread or at once, with every member that is lost, and at last, once,
  // with the failure of the group that `look` finds; neither may wait.
  void watch(std::uint64_t group, const std::vector<Rank>& members, Hear hear, std::function<Status()> look);
  // Those of `members` that are lost, and how.
  std::map<Rank, Status> lost(const std::vector<Rank>& members) const;
  // The others go on without `ranks`: they count as lost, and what they say of others is not heard.
  void leave_out(const std::vector<Rank>& ranks, const Status& why);

  // While one lives, heaps may move: nobody's pulse is counted or looked at, only deaths are seen. Afterwards
  // everybody gets their time again. Other hosts hear this one all the time.
  class Pause {
   public:
    explicit Pause(Monitor& monitor);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    Monitor& monitor_;
  };

  // False: not now; it is told again.
  using HearLeft = std::function<bool(Rank)>;
  // `hear` is called on the monitor's thread, with no lock held, of every rank that has left the world, also
  // before this; it may not wait. At most one; nobody is told before there is one.
  void when_left(HearLeft hear);
  // Whether it is known here that a rank has left the world; of one on another host that may take a moment.
  bool has_left(Rank rank) const;
  // The same for all ranks, by rank; for those who may ask after the monitor is gone.
  using LeftRanks = std::vector<std::atomic<bool>>;
  std::shared_ptr<const LeftRanks> left() const;

  // Afterwards the group's `hear` is not running and will not run.
  void forget(std::uint64_t group);

  // Says goodbye, so that this rank is not taken for dead; after that nobody is watched, and nobody hears
  // anything. Idempotent; destruction does it.
  void leave();

 private:
  class Watcher;
  struct Group {
    std::vector<Rank> members;
    Hear hear;  // empty once it has heard the group's failure
    std::function<Status()> look;
  };
  Monitor(std::unique_ptr<Watcher> watcher, std::uint64_t fork_generation);

  void hear_of(Rank lost, const Status& status);
  void look_at_groups();
  void tell_of_leaves();

  const std::uint64_t fork_generation_;
  std::atomic<bool> stop_ = false;
  mutable Mutex mutex_;
  std::map<std::uint64_t, Group> groups_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<Rank, Status> lost_ LOCKSTEP_GUARDED_BY(mutex_);
  HearLeft hear_left_ LOCKSTEP_GUARDED_BY(mutex_);
  std::set<Rank> told_left_;  // used by the thread
  Mutex looking_;  // before mutex_; held by the thread while it looks, and by who changes what it looks at
  std::unique_ptr<Watcher> watcher_;
  std::thread thread_;
};

}  // namespace lockstep::backend
