// Runs the operations of one group, one at a time, in the order in which they were issued.
//
// run() does it on the calling thread: at once if nothing is before it, else it first runs, or waits for,
// what was issued earlier. start() hands it to the worker thread, which is made with the first such
// operation; a thread that waits for a Work runs what is due up to it instead of sleeping. Neither runs
// anything whose deadline is later than its own.
//
// Thread safety: any thread; bodies run with no lock held.
// Destruction: fail() first, then whatever runs must end; it is waited for. Works may outlive the queue.
// Errors: what a body throws has ended the body, and the queue goes on. run() and run_alone() let it through;
// an operation of start() ends with kInternal, for want of memory with kNoMemory.
// Does not: know what an operation is, or stop one that runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/backend/work.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"

namespace lockstep::backend {

class OpQueue {
 public:
  // What an operation does; it is given its number, from 1.
  using Body = std::function<Status(std::uint64_t sequence)>;

  // `whose` is what its own errors begin with: "rank 2: group \"pair\"".
  explicit OpQueue(const Clock& clock, std::string whose = {});
  ~OpQueue();
  OpQueue(const OpQueue&) = delete;
  OpQueue& operator=(const OpQueue&) = delete;

  // An operation that its caller waits for.
  struct Turn {
    Deadline deadline;      // its own
    std::string_view name;  // of the call, of static storage
  };
  // `body` is not copied. If the deadline passes before it can begin, its number is lost, and the queue fails
  // with kTimeout, which says what it has waited behind: then `late` is given that, with no lock held, and
  // run() gives what it makes of it.
  template <typename Function, typename Late>
  Status run(const Turn& turn, const Function& body, const Late& late);
  template <typename Function>
  Status run(const Turn& turn, const Function& body) {
    return run(turn, body, [](const Status& why) { return why; });
  }
  // `deadline` is the operation's own: the latest that its body returns. It takes `numbers` of them, and its
  // body is given the first. `name` is that of the call, of static storage.
  WorkPtr start(Body body, const Deadline& deadline, std::uint64_t numbers = 1,
                std::string_view name = "operation");
  // A Work that has ended before it began.
  WorkPtr ended(const Status& status) const;

  // Runs `body` when nothing runs, also after fail(). It takes no number.
  void run_alone(const std::function<void()>& body);
  // Whether an operation runs just now.
  bool busy() const;
  // What has not begun ends with `why`, and so does all that is issued later.
  void fail(const Status& why);
  // What fail() was told; ok before.
  Status failure() const;
  std::uint64_t last_sequence() const;

 private:
  struct Op;
  struct Dropped;
  struct State;

  // This thread may run number `sequence` now, and must call end_run(); else `refused` or `late` say why not.
  struct Begun {
    std::uint64_t sequence = 0;
    Status refused = {};
    Status late = {};
  };
  Begun begin_run(const Turn& turn);
  void end_run();
  // Ends what runs, however its scope is left.
  struct RunEnd {
    ~RunEnd() { queue.end_run(); }
    OpQueue& queue;
  };

  // Shared with the works, which may outlive the queue.
  const std::shared_ptr<State> state_;
};

template <typename Function, typename Late>
Status OpQueue::run(const Turn& turn, const Function& body, const Late& late) {
  const Begun begun = begin_run(turn);
  if (!begun.late.ok()) return late(begun.late);
  LOCKSTEP_TRY(begun.refused);
  const RunEnd end{*this};
  return body(begun.sequence);
}

}  // namespace lockstep::backend
