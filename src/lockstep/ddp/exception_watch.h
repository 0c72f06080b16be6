// Two ways to hear of an exception that nobody tells: by an object that goes without its end having been
// reached. Internal.
#pragma once

#include <exception>
#include <functional>
#include <utility>

namespace lockstep::ddp {

// Lives as long as a task of autograd. One that goes before the task's end was reached has met an exception.
class TaskWatch {
 public:
  explicit TaskWatch(std::function<void()> on_exception) : on_exception_(std::move(on_exception)) {}
  ~TaskWatch() {
    if (!reached_end_) on_exception_();
  }
  TaskWatch(const TaskWatch&) = delete;
  TaskWatch& operator=(const TaskWatch&) = delete;
  void reach_end() { reached_end_ = true; }

 private:
  const std::function<void()> on_exception_;
  bool reached_end_ = false;
};

// Lives as long as the graph of some outputs. One that goes while an exception unwinds the stack was not
// dropped on purpose: what was to become a loss has met that exception.
class UnwindWatch {
 public:
  explicit UnwindWatch(std::function<void()> on_unwind)
      : on_unwind_(std::move(on_unwind)), exceptions_(std::uncaught_exceptions()) {}
  ~UnwindWatch() {
    if (std::uncaught_exceptions() > exceptions_) on_unwind_();
  }
  UnwindWatch(const UnwindWatch&) = delete;
  UnwindWatch& operator=(const UnwindWatch&) = delete;

 private:
  const std::function<void()> on_unwind_;
  const int exceptions_;
};

}  // namespace lockstep::ddp
