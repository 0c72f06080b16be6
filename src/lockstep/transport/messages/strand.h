// A Strand is where the state of a messenger lives: one thread at a time is on it, whichever that is.
//
// Callers, threads that wait for a message, the transport's loop and the attendant all come to it and do
// their part themselves; so a message does not have to change threads. Methods that end in _on_strand are
// called there.
//
// Thread safety: run(), try_run(), run_for() and await_calls() from any thread; post() and call() on the
// strand. Never held while somebody else's code runs: callbacks are called after the turn.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/transport/loop.h"

namespace lockstep::transport::messages {

class Strand : public std::enable_shared_from_this<Strand> {
 public:
  using Task = std::function<void()>;
  // `after_calls` runs after callbacks were called.
  explicit Strand(Task after_calls) : after_calls_(std::move(after_calls)) {}

  // Waits for its turn, runs `task` and what it posts; then makes its calls, with nothing held. On the strand
  // it only runs `task`.
  template <typename Body>
  void run(Body&& task) {
    if (is_here()) return task();
    mutex_.lock();
    make(turn(std::forward<Body>(task)));
  }
  // As run(); false, and nothing is run, if another thread is on the strand.
  template <typename Body>
  bool try_run(Body&& task) {
    if (!mutex_.try_lock()) return false;
    make(turn(std::forward<Body>(task)));
    return true;
  }
  // As run(), for a thread that may not make the calls: the loop makes them.
  template <typename Body>
  void run_for(Loop& loop, Body&& task) {
    if (is_here()) return task();
    mutex_.lock();
    Calls calls = turn(std::forward<Body>(task), Caller::kAnother);
    if (!calls.empty())
      loop.post([self = shared_from_this(), calls = std::move(calls)] { self->make_again(calls); });
  }

  // Later in this turn.
  void post(Task task) { tasks_.push_back(std::move(task)); }
  // After this turn.
  void call(Task task) { calls_.push_back(std::move(task)); }

  bool is_here() const { return holder_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  // Until no other thread is making calls.
  void await_calls();

 private:
  using Calls = std::vector<Task>;
  enum class Caller : bool { kThisThread, kAnother };

  // Unlocks at the end.
  template <typename Body>
  Calls turn(Body&& task, Caller caller = Caller::kThisThread) LOCKSTEP_ANNOTATE(release_capability(mutex_)) {
    holder_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    task();
    Calls calls = finish(caller);
    mutex_.unlock();
    return calls;
  }
  Calls finish(Caller caller) LOCKSTEP_REQUIRES(mutex_);
  void make(const Calls& calls);
  void make_again(const Calls& calls);

  const Task after_calls_;
  Mutex mutex_;
  CondVar changed_;
  std::atomic<std::thread::id> holder_;
  std::deque<Task> tasks_;  // used on the strand
  Calls calls_;             // used on the strand
  std::vector<std::thread::id> calling_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::transport::messages
