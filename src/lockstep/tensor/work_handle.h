// A WorkHandle is what a collective or message returns: torch's Work, whose errors are exceptions.
//
// That of an operation that was not asynchronous, or that did nothing because this rank is no member, is
// complete and has nothing to wait for. (Its namesake below, backend::Work, gives a Status and knows bytes.)
//
// Ownership: it and the operation keep the tensors. Letting go of it never waits and stops nothing: what the
// operation writes is written all the same. An output that is not contiguous is written when the operation is
// complete, by a thread of the group or by the one that waits; wait() and is_completed() return after that.
// Thread safety: any thread; copies are the same work.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/backend/work.h"
#include "lockstep/base/clock.h"

namespace lockstep::tensor {

class WorkHandle {
 public:
  class State;
  WorkHandle() = default;  // complete
  explicit WorkHandle(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // Until it is complete; throws its error. With a timeout of its own it may give up earlier, with
  // TimeoutError: the operation goes on.
  void wait(std::optional<Duration> timeout = {}) const;
  bool is_completed() const;
  bool is_success() const;
  // The error of an operation that is complete and failed, else nothing.
  std::exception_ptr exception() const;
  // Runs `then` once, after completion, on the thread that completes it; if that has been, on a thread of the
  // group or on this one. It must not wait or throw, and cannot start a collective of the group.
  void on_complete(std::function<void()> then) const;
  // The tensors that it writes; known when it is complete.
  std::vector<at::Tensor> result() const;
  // Of a receive that is complete: the sender's global rank. Else -1.
  int source_rank() const;
  // The operation's number in its group; 0 for one that was complete at once.
  std::uint64_t sequence() const;
  // From the start of its run to its completion; zero before.
  Duration duration() const;

 private:
  std::shared_ptr<State> state_;  // shared by the copies of the handle
};

}  // namespace lockstep::tensor

namespace lockstep {
using tensor::WorkHandle;
}
