// The groups of a world that live, for a world that ends them. Whoever uses one from outside keeps it from
// going meanwhile.
//
// Thread safety: any thread.
#pragma once

#include <functional>
#include <map>

#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"

namespace lockstep::backend {

template <typename Group>
class LivingGroups {
 public:
  void add(Group* group) {
    const MutexLock lock(mutex_);
    users_.emplace(group, 0);
  }
  // By its destructor: waits for whoever uses it. One that was never added may be removed, too.
  void remove(Group* group) {
    const MutexLock lock(mutex_);
    const auto found = users_.find(group);
    if (found == users_.end()) return;
    while (found->second > 0) changed_.wait(mutex_);
    users_.erase(found);
  }
  // Calls `use` with every group, one after the other, with no lock held: others may come and go meanwhile.
  // An error ends it. Takes no memory of its own.
  Status for_each(const std::function<Status(Group&)>& use) {
    Group* group = nullptr;
    while ((group = hold_next(group)) != nullptr) {
      const Status status = use(*group);
      let_go(group);
      LOCKSTEP_TRY(status);
    }
    return {};
  }

 private:
  // By their addresses; nullptr stands before the first and behind the last.
  Group* hold_next(Group* last) {
    const MutexLock lock(mutex_);
    const auto next = users_.upper_bound(last);
    if (next == users_.end()) return nullptr;
    ++next->second;
    return next->first;
  }
  void let_go(Group* group) {
    const MutexLock lock(mutex_);
    --users_.at(group);
    changed_.notify_all();
  }

  Mutex mutex_;
  CondVar changed_;
  std::map<Group*, int> users_ LOCKSTEP_GUARDED_BY(mutex_);  // how many use it just now
};

}  // namespace lockstep::backend
