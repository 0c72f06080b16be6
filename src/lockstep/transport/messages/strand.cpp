#include "lockstep/transport/messages/strand.h"

#include <algorithm>

namespace lockstep::transport::messages {

Strand::Calls Strand::finish(Caller caller) {
  while (!tasks_.empty()) {
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    task();
  }
  Calls calls = std::exchange(calls_, {});
  if (!calls.empty() && caller == Caller::kThisThread) calling_.push_back(std::this_thread::get_id());
  holder_.store({}, std::memory_order_relaxed);
  return calls;
}

void Strand::make(const Calls& calls) {
  if (calls.empty()) return;
  for (const Task& call : calls) call();
  after_calls_();
  const MutexLock lock(mutex_);
  calling_.erase(std::ranges::find(calling_, std::this_thread::get_id()));
  changed_.notify_all();
}

void Strand::make_again(const Calls& calls) {
  {
    const MutexLock lock(mutex_);
    calling_.push_back(std::this_thread::get_id());
  }
  make(calls);
}

void Strand::await_calls() {
  const auto is_another = [](std::thread::id id) { return id != std::this_thread::get_id(); };
  const MutexLock lock(mutex_);
  while (std::ranges::any_of(calling_, is_another)) changed_.wait(mutex_);
}

}  // namespace lockstep::transport::messages
