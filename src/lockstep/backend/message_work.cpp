#include "lockstep/backend/message_work.h"

#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::backend {

MessageWork::MessageWork(std::uint64_t sequence, std::shared_ptr<const void> keep, const Clock& clock)
    : sequence_(sequence), clock_(clock), start_(clock.now()), keep_(std::move(keep)) {}

void MessageWork::complete(const Status& status, std::optional<Rank> source) {
  std::vector<std::function<void(const Status&)>> callbacks;
  std::shared_ptr<const void> keep;
  {
    const MutexLock lock(mutex_);
    done_ = true;
    status_ = status;
    source_ = source;
    took_ = clock_.now() - start_;
    callbacks = std::exchange(callbacks_, {});
    keep = std::exchange(keep_, nullptr);
    changed_.notify_all();
  }
  for (const auto& callback : callbacks) callback(status);
}

Status MessageWork::wait(std::optional<Deadline> deadline) {
  const MutexLock lock(mutex_);
  while (!done_) {
    if (!deadline) {
      changed_.wait(mutex_);
    } else if (deadline->expired()) {
      return Status::timeout(cat("message #", sequence_, " has not arrived in time"));
    } else {
      changed_.wait_until(mutex_, *deadline);
    }
  }
  return status_;
}

bool MessageWork::is_completed() const {
  const MutexLock lock(mutex_);
  return done_;
}

Status MessageWork::status() const {
  const MutexLock lock(mutex_);
  return status_;
}

void MessageWork::on_complete(std::function<void(const Status&)> then) {
  Status ended;
  {
    const MutexLock lock(mutex_);
    if (!done_) {
      callbacks_.push_back(std::move(then));
      return;
    }
    ended = status_;
  }
  then(ended);
}

std::optional<Rank> MessageWork::source() const {
  const MutexLock lock(mutex_);
  return source_;
}

Duration MessageWork::duration() const {
  const MutexLock lock(mutex_);
  return took_;
}

}  // namespace lockstep::backend
