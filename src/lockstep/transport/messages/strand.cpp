#include "lockstep/transport/messages/strand.h"

#include <algorithm>
#include <exception>
#include <new>

#include "lockstep/base/text.h"

namespace lockstep::transport::messages {

namespace {

// How often what ends everything is tried: each time it comes further.
constexpr int kAttempts = 8;

}  // namespace

void Strand::run_posted() {
  while (!tasks_.empty()) {
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    task();
  }
}

Status Strand::thrown() const {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return no_memory_;
  } catch (const std::exception& error) {
    return Status::internal(cat("an exception in its own code: ", error.what()));
  } catch (...) {
    return Status::internal("an exception of unknown type in its own code");
  }
}

void Strand::recover() {
  Status why = no_memory_;
  try {
    why = thrown();
  } catch (...) {  // for want of memory
    why = no_memory_;
  }
  untold_ = !tell_failed(why);
}

bool Strand::tell_failed(const Status& why) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    try {
      failed_(why);
      run_posted();
      return true;
    } catch (...) {
      continue;
    }
  }
  tasks_.clear();
  return false;
}

void Strand::call(std::function<void(const Status&, std::optional<Rank>)>& done, const Status& status,
                  std::optional<Rank> source) {
  if (calls_.size() == calls_.capacity()) calls_.reserve(2 * calls_.size() + 4);
  calls_.push_back({.done = std::move(done), .status = status, .source = source});
}

// While one lives this thread makes calls.
struct Strand::Making {
  ~Making() {
    const MutexLock lock(strand.mutex_);
    strand.calling_.erase(std::ranges::find(strand.calling_, std::this_thread::get_id()));
    strand.changed_.notify_all();
  }
  Strand& strand;
};

void Strand::finish(Caller caller, Turn& done) {
  if (!calls_.empty() && caller == Caller::kThisThread) {
    done.calls = std::exchange(calls_, {});
    calling_.push_back(std::this_thread::get_id());
  }
  done.leaves_calls = !calls_.empty();
  holder_.store({}, std::memory_order_relaxed);
}

void Strand::make(const Calls& calls) {
  if (calls.empty()) return;
  const Making making{*this};
  std::exception_ptr thrown;
  for (const Call& call : calls) {
    try {
      tell(call);
    } catch (...) {
      thrown = std::current_exception();
    }
  }
  after_calls_();
  if (thrown) std::rethrow_exception(thrown);
}

void Strand::tell(const Call& call) const {
  try {
    call.done(call.status, call.source);
  } catch (const std::bad_alloc&) {
    call.done(no_memory_, std::nullopt);
  }
}

void Strand::have_made(Loop& loop) {
  try {
    loop.post([self = shared_from_this()] { self->run([] {}); });
  } catch (const std::bad_alloc&) {
    return;  // they are still there
  }
}

void Strand::await_calls() {
  const auto is_another = [](std::thread::id id) { return id != std::this_thread::get_id(); };
  const MutexLock lock(mutex_);
  while (std::ranges::any_of(calling_, is_another)) changed_.wait(mutex_);
}

}  // namespace lockstep::transport::messages
