#include "extension/completion_pool.h"

#include <chrono>
#include <deque>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/thread.h"

namespace lockstep::python {

constexpr Duration kIdle = std::chrono::seconds(5);

struct CompletionPool::State {
  Mutex mutex;
  CondVar more;
  std::deque<std::function<void()>> tasks LOCKSTEP_GUARDED_BY(mutex);
  std::size_t threads LOCKSTEP_GUARDED_BY(mutex) = 0;
  std::size_t idle LOCKSTEP_GUARDED_BY(mutex) = 0;
  CondVar rested;
  bool closed LOCKSTEP_GUARDED_BY(mutex) = false;

  // Nothing: the thread is to end.
  std::function<void()> next() {
    const MutexLock lock(mutex);
    const Deadline end = Clock::steady().in(kIdle);
    ++idle;
    rested.notify_all();
    while (tasks.empty() && !closed) {
      if (!more.wait_until(mutex, end)) break;
    }
    --idle;
    if (tasks.empty()) {
      --threads;
      return {};
    }
    std::function<void()> task = std::move(tasks.front());
    tasks.pop_front();
    return task;
  }
};

CompletionPool::CompletionPool() : state_(std::make_shared<State>()) {}

CompletionPool::~CompletionPool() {
  const MutexLock lock(state_->mutex);
  state_->closed = true;
  state_->more.notify_all();
}

void CompletionPool::run(std::function<void()> task) {
  {
    const MutexLock lock(state_->mutex);
    if (state_->idle > state_->tasks.size()) {
      state_->tasks.push_back(std::move(task));
      state_->more.notify_one();
      return;
    }
    ++state_->threads;
  }
  // Shared with the thread, if there is one.
  const auto first = std::make_shared<std::function<void()>>(std::move(task));
  auto thread = base::start_thread("lockstep-future", [state = state_, first] {
    std::function<void()> next = std::exchange(*first, {});
    while (next) {
      next();
      next = {};  // what it kept is let go of before another is waited for
      next = state->next();
    }
  });
  if (thread.ok()) {
    thread->detach();
    return;
  }
  (*first)();
  const MutexLock lock(state_->mutex);
  --state_->threads;
}

void CompletionPool::drain(const Deadline& deadline) {
  const MutexLock lock(state_->mutex);
  while (state_->threads > state_->idle || !state_->tasks.empty()) {
    if (!state_->rested.wait_until(state_->mutex, deadline)) return;
  }
}

}  // namespace lockstep::python
