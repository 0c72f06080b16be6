// A Loop is one thread that runs posted tasks, timers and socket handlers, one after the other.
//
// Thread safety: post(), is_this_thread() and run_and_drain() from any thread.
// Order: what is posted runs in the order of posting; what a task posts runs after the task.
// Destruction waits until nothing is left to do: whoever has a wait or a timer pending ends it first.
// In a forked child there is no thread: nothing runs, and destruction leaves everything as it is.
#pragma once

#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"

namespace lockstep::transport {

class Loop {
 public:
  // `name` is the thread's, at most 15 characters. Signals are left to the program's other threads.
  static Result<std::unique_ptr<Loop>> start(const char* name, const Clock& clock);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  const Clock& clock() const { return clock_; }
  // Only for deadlines on this clock: points in time of another would mean nothing here.
  base::TimePoint time_of(const Deadline& deadline) const;
  asio::io_context& context();

  template <typename Task>
  void post(Task&& task) {
    asio::post(context(), std::forward<Task>(task));
  }
  // Runs `task` on the loop and returns when it and all that it posted have run. On the loop it runs `task`
  // at once and does not wait for what it posts. In a forked child it does nothing.
  void run_and_drain(std::function<void()> task);

  bool is_this_thread() const;
  bool in_forked_child() const;

  // Those who must be gone before the loop goes.
  class Guest {
   public:
    explicit Guest(Loop& loop) : loop_(loop) { ++loop_.guests_; }
    ~Guest() { --loop_.guests_; }
    Guest(const Guest&) = delete;
    Guest& operator=(const Guest&) = delete;

   private:
    Loop& loop_;
  };

 private:
  struct Impl;
  Loop(std::unique_ptr<Impl> impl, const Clock& clock);

  const Clock& clock_;
  const std::uint64_t fork_generation_;
  std::atomic<int> guests_ = 0;
  std::unique_ptr<Impl> impl_;
};

// One alarm on the loop's clock. Lives on the loop.
class Timer {
 public:
  explicit Timer(Loop& loop);
  ~Timer() { disarm_on_loop(); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // Replaces what was set. `ring` runs once, on the loop, not before `at`; TimePoint::max() is never.
  void arm_on_loop(base::TimePoint at, std::function<void()> ring);
  void disarm_on_loop();
  bool armed() const { return state_->ring != nullptr; }
  base::TimePoint at() const { return state_->at; }

 private:
  // Shared with the handler that waits, which may run after the Timer is gone.
  struct State {
    asio::steady_timer timer;
    const Clock& clock;
    base::TimePoint at{};
    std::function<void()> ring;
    std::uint64_t round = 0;  // tells a wait from the one that replaced it
  };
  static void wait_on_loop(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
};

}  // namespace lockstep::transport
