// The resident memory of this process, by address. Internal.
//
// torch frees memory by its address alone where it is asked for raw memory, so that is all that can be known
// of it then.
// Thread safety: any thread.
#pragma once

#include <memory>
#include <unordered_map>
#include <utility>

#include "lockstep/base/mutex.h"

namespace lockstep::tensor {

class Session;

class ResidentBlocks {
 public:
  // Never destroyed: a tensor with static storage may be freed at any time.
  static ResidentBlocks& all() {
    static ResidentBlocks* const only = new ResidentBlocks;
    return *only;
  }
  void add(void* data, std::shared_ptr<const void> owner, std::weak_ptr<Session> session) {
    const MutexLock lock(mutex_);
    blocks_[data] = {std::move(owner), std::move(session)};
  }
  // False if it is not one of them.
  bool remove(void* data) {
    Block taken;  // let go of with no lock held
    const MutexLock lock(mutex_);
    const auto found = blocks_.find(data);
    if (found == blocks_.end()) return false;
    taken = std::move(found->second);
    blocks_.erase(found);
    return true;
  }
  bool is_of(const void* data, const std::shared_ptr<Session>& session) const {
    const MutexLock lock(mutex_);
    const auto found = blocks_.find(data);
    return found != blocks_.end() && found->second.session.lock() == session;
  }

 private:
  struct Block {
    std::shared_ptr<const void> owner;
    std::weak_ptr<Session> session;
  };
  mutable Mutex mutex_;
  std::unordered_map<const void*, Block> blocks_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::tensor
