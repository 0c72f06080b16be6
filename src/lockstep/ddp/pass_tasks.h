// The tasks of autograd that have come to a backward pass, and by what. Internal. Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "lockstep/base/mutex.h"

namespace lockstep::ddp {

// By what a task comes to a pass.
enum class Entry : std::uint8_t { kOutputs, kGradient };

class PassTasks final {
 public:
  enum class Came : std::uint8_t { kFirst, kAfterOthers, kAgain };
  Came enter(int task, Entry by) {
    const MutexLock lock(mutex_);
    const auto [at, is_new] = tasks_.try_emplace(task, by);
    if (by == Entry::kOutputs) at->second = by;
    if (!is_new) return Came::kAgain;
    ++open_;
    return tasks_.size() == 1 ? Came::kFirst : Came::kAfterOthers;
  }
  // One that had come is over. True if it was the last.
  bool leave() {
    const MutexLock lock(mutex_);
    return --open_ == 0;
  }
  bool any_came() const {
    const MutexLock lock(mutex_);
    return !tasks_.empty();
  }
  bool any_is_open() const {
    const MutexLock lock(mutex_);
    return open_ > 0;
  }
  // First or later.
  bool came_by_outputs(int task) const {
    const MutexLock lock(mutex_);
    return tasks_.at(task) == Entry::kOutputs;
  }

 private:
  mutable Mutex mutex_;
  std::unordered_map<int, Entry> tasks_ LOCKSTEP_GUARDED_BY(mutex_);
  std::size_t open_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep::ddp
