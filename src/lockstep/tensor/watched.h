// One operation as those who watch it see it: torch's profiler, observers, the summary. Internal.
//
// Whether anybody watches is asked first, by wanted(), which costs two loads. If so, complete() is called
// once when the operation has ended, by any thread, and returned() once when its call returns.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "lockstep/backend/backend.h"
#include "lockstep/backend/counting.h"
#include "lockstep/base/clock.h"
#include "lockstep/tensor/group_state.h"
#include "lockstep/tensor/group_watch.h"

namespace lockstep::tensor {

// What is watched; borrowed for the call.
struct WatchedCall {
  const char* call;
  const GroupState& state;
  const Backend& backend;
  std::span<const at::Tensor* const> tensors = {};
  std::optional<int> peer = {};  // of a message
  bool async_op = false;
};

class Watched {
 public:
  static bool wanted(const GroupState& state);

  // The operation is about to be given to the backend.
  explicit Watched(const WatchedCall& call);
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  // `took` is how long it ran; else since begin().
  void complete(const Status& status, std::uint64_t sequence, std::optional<Duration> took = {});
  void returned(const Status& status, std::uint64_t sequence) const;
  // complete(), once the work is. The work may outlive its group, so nothing of the group is kept.
  static void complete_with(const std::shared_ptr<Watched>& watched, backend::Work& work);

 private:
  void begin_range(std::span<const at::Tensor* const> tensors);
  OperationEvent event(OperationPhase phase, const Status& status, std::uint64_t sequence,
                       Duration took) const;

  const std::shared_ptr<GroupWatch> watch_;  // shared with the group, which may end first
  const base::TimePoint start_;
  const bool speaks_;  // this rank says the group's summary
  OperationEvent event_;
  backend::Counters counted_;
  std::function<void()> end_range_;  // of the profiler; nothing if there is none
};

}  // namespace lockstep::tensor
