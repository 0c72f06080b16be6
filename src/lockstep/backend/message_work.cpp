#include "lockstep/backend/message_work.h"

#include <exception>
#include <utility>

#include "lockstep/backend/callback_scope.h"
#include "lockstep/base/text.h"

namespace lockstep::backend {

MessageWork::MessageWork(MessageName name, std::shared_ptr<const void> keep, const Clock& clock,
                         std::shared_ptr<transport::messages::Progress> progress)
    : name_(name),
      clock_(clock),
      start_(clock.now()),
      progress_(std::move(progress)),
      keep_(std::move(keep)) {}

void MessageWork::complete(const Status& status, std::optional<Rank> source) {
  std::vector<std::function<void(const Status&)>> callbacks;
  std::shared_ptr<const void> keep;
  {
    const MutexLock lock(mutex_);
    if (done_) return;
    status_ = status;
    source_ = source;
    took_ = clock_.now() - start_;
    callbacks = std::exchange(callbacks_, {});
    keep = std::exchange(keep_, nullptr);
    done_ = true;
  }
  const CallbackScope scope(this);
  std::exception_ptr thrown;
  for (const auto& callback : callbacks) {
    try {
      callback(status);
    } catch (...) {
      thrown = std::current_exception();
    }
  }
  if (thrown) std::rethrow_exception(thrown);
}

Status MessageWork::wait(std::optional<Deadline> deadline) {
  if (!done_ && !progress_->wait([this] { return done_.load(); }, deadline)) {
    const std::string name = cat("rank ", name_.rank, ": ", name_.op, " #", name_.sequence);
    if (!progress_->in_forked_child())
      return Status::timeout(cat(name, " has not ended in time; it goes on."));
    return Status::invalid(cat(name, " belongs to the parent of this forked process."),
                           {.failure = Failure::kForked});
  }
  return status();
}

bool MessageWork::is_completed() const {
  if (!done_) progress_->poll();
  return done_;
}

Status MessageWork::status() const {
  const MutexLock lock(mutex_);
  return status_;
}

void MessageWork::on_complete(std::function<void(const Status&)> then) {
  if (keep_callback(then)) return progress_->call_attendant();
  const CallbackScope scope(this);
  then(status());
}

bool MessageWork::keep_callback(const std::function<void(const Status&)>& then) {
  const MutexLock lock(mutex_);
  if (!done_) callbacks_.push_back(then);
  return !done_;
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
