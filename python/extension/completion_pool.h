// The threads on which futures complete.
//
// What hangs on a future may wait for another operation (torch's communication hooks do), so a task never
// waits for a thread: where all are taken, one more is started. Idle ones are used again, and end after a
// while.
//
// Thread safety: any thread.
// Destruction waits for nobody: what runs goes on, what is queued is run.
#pragma once

#include <functional>
#include <memory>

#include "lockstep/base/clock.h"

namespace lockstep::python {

class CompletionPool {
 public:
  CompletionPool();
  ~CompletionPool();
  CompletionPool(const CompletionPool&) = delete;
  CompletionPool& operator=(const CompletionPool&) = delete;

  // On the calling thread only where no thread can be had. `task` does not throw.
  void run(std::function<void()> task);
  // Until nothing runs, or the deadline.
  void drain(const Deadline& deadline);

 private:
  struct State;
  const std::shared_ptr<State> state_;  // shared with the threads, which may outlive the pool
};

}  // namespace lockstep::python
