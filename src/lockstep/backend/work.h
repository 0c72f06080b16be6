// A Work is an operation that was started and can be waited for.
//
// Thread safety: any thread.
// Ownership: shared by the caller and the group that runs it. Letting go of it never waits, never stops the
// operation, and never frees bytes that it still uses.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"

namespace lockstep::backend {

class Work {
 public:
  virtual ~Work() = default;

  // Until it is complete; gives its result. With a deadline of its own it may give up earlier, with kTimeout:
  // the operation goes on, and its bytes stay in use.
  virtual Status wait(std::optional<Deadline> deadline = {}) = 0;
  virtual bool is_completed() const = 0;
  // The result; ok while it is not complete.
  virtual Status status() const = 0;
  bool is_success() const { return is_completed() && status().ok(); }

  // Runs `then` once, after completion, on the thread that completes it; if that has been, on a thread of the
  // group or on this one. It must not wait, for an operation of the group it cannot, and it can start no
  // collective of any group (kInvalid). It lets no exception out: nobody catches it on a thread of the group,
  // and the process ends.
  virtual void on_complete(std::function<void(const Status&)> then) = 0;

  // Of a receive: the rank, in the group, that the message came from. Known when it is complete.
  virtual std::optional<Rank> source() const = 0;
  // The operation's number in its group. Point-to-point messages have numbers of their own.
  virtual std::uint64_t sequence() const = 0;
  // From the start of its run to its completion; zero before.
  virtual Duration duration() const = 0;
};

using WorkPtr = std::shared_ptr<Work>;

}  // namespace lockstep::backend

namespace lockstep {
using backend::Work;
using backend::WorkPtr;
}  // namespace lockstep
