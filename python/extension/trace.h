// The last operations of this process, for lockstep_torch.trace(): what torch calls a flight recorder.
//
// Always on. A note costs a lock and a look at the clock; it allocates where tensors are many or have many
// dimensions. Older notes are overwritten.
//
// Thread safety: any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/mutex.h"

namespace lockstep::python {

struct TracedGroup {
  std::string name;
  std::string description;
  std::vector<int> ranks;  // of the default group
  int rank = 0;            // this process's, in the group
};

// Shapes and types of some tensors, side by side.
class TracedTensors {
 public:
  void add(c10::ArrayRef<at::Tensor> tensors);
  std::vector<std::vector<std::int64_t>> sizes() const;
  std::vector<std::string> types() const;

 private:
  c10::SmallVector<std::int64_t, 4> sizes_;
  c10::SmallVector<std::uint32_t, 2> ends_;  // of each tensor's sizes
  c10::SmallVector<at::ScalarType, 2> types_;
};

struct TracedOperation {
  std::shared_ptr<const TracedGroup> group;  // shared by all operations of the group
  const char* name = "";                     // of static storage
  int peer = -1;                             // a message's, in the group
  std::uint64_t sequence = 0;                // in its group, from 1: collectives and messages apart
  std::int64_t timeout_ms = 0;
  TracedTensors inputs = {};
  TracedTensors outputs = {};
};

class Trace {
 public:
  using Ticket = std::uint64_t;
  enum class State : std::uint8_t { kStarted, kCompleted, kFailed, kForgotten };
  struct Entry {
    Ticket id = 0;  // from 0
    TracedOperation operation = {};
    State state = State::kStarted;
    std::int64_t started_ns = 0;  // since the epoch
    std::int64_t ended_ns = 0;
  };

  // Two rings, so that ranks that send different numbers of messages remember the same collectives.
  static Trace& of_collectives();
  static Trace& of_messages();

  Ticket begin(TracedOperation operation);
  // One that was overwritten meanwhile is forgotten.
  void end(Ticket ticket, State how);
  // The oldest first, without those that were to be forgotten.
  std::vector<Entry> entries() const;

 private:
  mutable Mutex mutex_;
  std::vector<Entry> ring_ LOCKSTEP_GUARDED_BY(mutex_);
  Ticket next_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

// One operation from its start to its end; failed, if it goes away before anybody said otherwise.
class Traced {
 public:
  Traced(Trace& trace, TracedOperation operation)
      : trace_(&trace), ticket_(trace.begin(std::move(operation))) {}
  Traced(Traced&& other) noexcept : trace_(std::exchange(other.trace_, nullptr)), ticket_(other.ticket_) {}
  Traced& operator=(Traced&&) = delete;
  ~Traced() { end(Trace::State::kFailed); }
  void succeeded() { end(Trace::State::kCompleted); }
  // It has never begun.
  void forget() { end(Trace::State::kForgotten); }

 private:
  void end(Trace::State how) {
    if (trace_ != nullptr) std::exchange(trace_, nullptr)->end(ticket_, how);
  }
  Trace* trace_;  // nothing: its end is noted
  Trace::Ticket ticket_;
};

}  // namespace lockstep::python
