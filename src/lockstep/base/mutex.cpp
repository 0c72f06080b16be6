#include "lockstep/base/mutex.h"

#include <algorithm>

namespace lockstep::base {

void CondVar::wait(Mutex& mutex) {
  std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
  condition_.wait(lock);
  (void)lock.release();  // the caller still holds it
}

bool CondVar::wait_until(Mutex& mutex, const Deadline& deadline) {
  const Duration remaining = deadline.remaining();
  if (remaining == Duration::zero()) return false;
  std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
  // An hour at most, so that the point in time handed to the system never overflows.
  condition_.wait_for(lock, std::min<Duration>(deadline.clock().patience(remaining), std::chrono::hours(1)));
  (void)lock.release();
  return !deadline.expired();
}

}  // namespace lockstep::base
