// What a Window and the session that it was made in share. Internal.
//
// Thread safety: any thread.
#pragma once

#include <memory>
#include <string>

#include "lockstep/backend/window.h"
#include "lockstep/base/mutex.h"
#include "lockstep/tensor/group_state.h"

namespace lockstep::tensor {

class WindowState {
 public:
  // The window keeps the world that it was made from.
  WindowState(std::shared_ptr<backend::Window> window, std::shared_ptr<GroupState> group)
      : group_(std::move(group)), window_(std::move(window)) {}

  // The group that it was made with: who is who.
  const GroupState& group() const { return *group_; }
  // InvalidArgument once it is closed.
  std::shared_ptr<backend::Window> window(const char* call) const;
  // Leaves it. Who waits in another thread meanwhile ends with GroupClosed.
  void close();

 private:
  const std::shared_ptr<GroupState> group_;  // shared with its handles
  mutable Mutex mutex_;
  // Shared with the calls that use it. Nothing once it is closed.
  std::shared_ptr<backend::Window> window_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::tensor
