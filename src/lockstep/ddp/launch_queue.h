// A LaunchQueue says which bucket of a pass is launched next, and that nobody launches two at once.
//
// Buckets are launched in plan order, so that all ranks do the same in the same order: one that is complete
// too early waits for those before it. Whoever completes the one that is next launches it, and goes on until
// there is none left. Others only count meanwhile. Internal.
//
// Thread safety: any thread; no lock is held while a bucket is launched.
// Errors: what `launch` throws, after which nothing is launched.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "lockstep/base/mutex.h"

namespace lockstep::ddp {

class LaunchQueue final {
 public:
  // `missing`: by bucket, how many of its gradients are to come.
  explicit LaunchQueue(std::vector<std::size_t> missing) : missing_(std::move(missing)) {}

  // A gradient of the bucket is there. Calls `launch` for each bucket that can go now.
  void count_down(std::size_t bucket, const std::function<void(std::size_t bucket)>& launch);
  bool has_begun() const;
  bool is_over() const;

 private:
  mutable Mutex mutex_;
  std::vector<std::size_t> missing_ LOCKSTEP_GUARDED_BY(mutex_);
  std::size_t launchable_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // buckets before this one are complete
  std::size_t launched_ LOCKSTEP_GUARDED_BY(mutex_) = 0;    // before this one: launched
  bool launching_ LOCKSTEP_GUARDED_BY(mutex_) = false;      // somebody is
};

}  // namespace lockstep::ddp
