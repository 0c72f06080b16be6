#include "lockstep/ddp/launch_queue.h"

namespace lockstep::ddp {

void LaunchQueue::count_down(std::size_t bucket, const std::function<void(std::size_t)>& launch) {
  {
    const MutexLock lock(mutex_);
    --missing_[bucket];
    while (launchable_ < missing_.size() && missing_[launchable_] == 0) ++launchable_;
    if (launching_ || launched_ == launchable_) return;
    launching_ = true;
  }
  for (;;) {
    std::size_t next = 0;
    {
      const MutexLock lock(mutex_);
      if (launched_ == launchable_) {
        launching_ = false;
        return;
      }
      next = launched_;
    }
    launch(next);
    const MutexLock lock(mutex_);
    ++launched_;
  }
}

bool LaunchQueue::has_begun() const {
  const MutexLock lock(mutex_);
  return launched_ > 0;
}

bool LaunchQueue::is_over() const {
  const MutexLock lock(mutex_);
  return launched_ == missing_.size();
}

}  // namespace lockstep::ddp
