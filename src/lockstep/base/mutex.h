// Mutex and CondVar with the annotations that clang's -Wthread-safety checks.
//
// One mutex per class; what it guards says GUARDED_BY(mutex_). Never call out with a lock held.
#pragma once

#include <condition_variable>
#include <mutex>

#include "lockstep/base/clock.h"

#if defined(__clang__)
#define LOCKSTEP_ANNOTATE(x) __attribute__((x))
#else
#define LOCKSTEP_ANNOTATE(x)
#endif
#define LOCKSTEP_GUARDED_BY(x) LOCKSTEP_ANNOTATE(guarded_by(x))
#define LOCKSTEP_REQUIRES(...) LOCKSTEP_ANNOTATE(requires_capability(__VA_ARGS__))
#define LOCKSTEP_EXCLUDES(...) LOCKSTEP_ANNOTATE(locks_excluded(__VA_ARGS__))

namespace lockstep::base {

class LOCKSTEP_ANNOTATE(capability("mutex")) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void lock() LOCKSTEP_ANNOTATE(acquire_capability()) { mutex_.lock(); }
  void unlock() LOCKSTEP_ANNOTATE(release_capability()) { mutex_.unlock(); }
  bool try_lock() LOCKSTEP_ANNOTATE(try_acquire_capability(true)) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class LOCKSTEP_ANNOTATE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) LOCKSTEP_ANNOTATE(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() LOCKSTEP_ANNOTATE(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits may wake for no reason: call them in a loop on the condition.
class CondVar {
 public:
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }
  void wait(Mutex& mutex) LOCKSTEP_REQUIRES(mutex);
  // False once the deadline has passed. A deadline on a clock that a test moves is noticed within its
  // patience.
  bool wait_until(Mutex& mutex, const Deadline& deadline) LOCKSTEP_REQUIRES(mutex);

 private:
  std::condition_variable condition_;
};

}  // namespace lockstep::base

namespace lockstep {
using base::CondVar;
using base::Mutex;
using base::MutexLock;
}  // namespace lockstep
