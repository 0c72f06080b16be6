// A Strand is where the state of a messenger lives: one thread at a time is on it, whichever that is.
//
// Callers, threads that wait for a message, the transport's loop and the attendant all come to it and do
// their part themselves; so a message does not have to change threads. Methods that end in _on_strand are
// called there.
//
// Thread safety: run(), try_run(), run_for() and await_calls() from any thread; post() and call() on the
// strand. Never held while somebody else's code runs: callbacks are called after the turn.
// Errors: a task that throws (there is no memory) leaves its work half done. Its turn goes on with
// when_failed(), on the strand, and no thread hears the exception. A callback that has no memory for what it
// is told is called again, with kNoMemory; whatever one throws, the others are called.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/transport/loop.h"

namespace lockstep::transport::messages {

class Strand : public std::enable_shared_from_this<Strand> {
 public:
  using Task = std::function<void()>;
  using Failed = std::function<void(const Status&)>;
  // A callback and what it is told.
  struct Call {
    std::function<void(const Status&, std::optional<Rank>)> done;
    Status status;
    std::optional<Rank> source;
  };

  // `after_calls` runs after callbacks were called.
  explicit Strand(Task after_calls) : after_calls_(std::move(after_calls)) { calling_.reserve(kManyThreads); }

  // Before anything is run. `failed` may be called again if it throws itself, in that turn and in later ones.
  void when_failed(Failed failed) { failed_ = std::move(failed); }

  // Waits for its turn, runs `task` and what it posts; then makes its calls, with nothing held. On the strand
  // it only runs `task`. False if something has thrown.
  template <typename Body>
  bool run(Body&& task) {
    if (is_here()) {
      task();
      return true;
    }
    mutex_.lock();
    const Turn done = turn(std::forward<Body>(task), Caller::kThisThread);
    make(done.calls);
    return done.went_well;
  }
  // As run(); false, and nothing is run, if another thread is on the strand.
  template <typename Body>
  bool try_run(Body&& task) {
    if (!mutex_.try_lock()) return false;
    make(turn(std::forward<Body>(task), Caller::kThisThread).calls);
    return true;
  }
  // As run(), for a thread that may not make the calls: the loop makes them.
  template <typename Body>
  void run_for(Loop& loop, Body&& task) {
    if (is_here()) return task();
    mutex_.lock();
    if (turn(std::forward<Body>(task), Caller::kAnother).leaves_calls) have_made(loop);
  }

  // Later in this turn.
  void post(Task task) { tasks_.push_back(std::move(task)); }
  // After this turn. `done` is taken last: if this throws, it is still the caller's.
  void call(std::function<void(const Status&, std::optional<Rank>)>& done, const Status& status,
            std::optional<Rank> source);

  bool is_here() const { return holder_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  // Until no other thread is making calls.
  void await_calls();

 private:
  // More do not make calls at the same time, so that noting one needs no memory.
  static constexpr std::size_t kManyThreads = 1024;
  using Calls = std::vector<Call>;
  enum class Caller : bool { kThisThread, kAnother };
  struct Turn {
    bool went_well = true;
    Calls calls = {};           // for this thread, which makes them
    bool leaves_calls = false;  // for another
  };
  struct Making;

  // Unlocks at the end.
  template <typename Body>
  Turn turn(Body&& task, Caller caller) LOCKSTEP_ANNOTATE(release_capability(mutex_)) {
    Turn done;
    holder_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    try {
      task();
      run_posted();
    } catch (...) {
      done.went_well = false;
      recover();
    }
    if (untold_ && done.went_well) untold_ = !tell_failed(no_memory_);
    finish(caller, done);
    mutex_.unlock();
    return done;
  }
  void run_posted();
  // In a handler: tells what was thrown, and runs what is still posted.
  void recover();
  bool tell_failed(const Status& why);
  Status thrown() const;
  void finish(Caller caller, Turn& done) LOCKSTEP_REQUIRES(mutex_);
  void make(const Calls& calls);
  void tell(const Call& call) const;
  // The loop makes the calls, or whoever is the next to come.
  void have_made(Loop& loop);

  const Task after_calls_;
  // Made in time: when it is needed there may be no memory for it.
  const Status no_memory_ =
      Status::internal("this process is out of memory.", {.failure = Failure::kNoMemory});
  Failed failed_ = [](const Status&) {};
  Mutex mutex_;
  CondVar changed_;
  std::atomic<std::thread::id> holder_;
  std::deque<Task> tasks_;  // used on the strand
  bool untold_ = false;     // used on the strand: something was thrown, and telling it has thrown, too
  Calls calls_;             // used on the strand
  std::vector<std::thread::id> calling_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::transport::messages
