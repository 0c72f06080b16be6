#include "lockstep/tensor/borrowed/message.h"

#include <utility>

#include "lockstep/tensor/borrowed/calls.h"

namespace lockstep::tensor {

CallbackThreads::~CallbackThreads() {
  const MutexLock lock(mutex_);
  for (std::thread& thread : threads_) {
    // The group is gone, and this thread's message was the last to use it.
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
  }
}

void CallbackThreads::run(std::function<void()> body) {
  const MutexLock lock(mutex_);
  threads_.emplace_back(std::move(body));
}

BorrowedMessage::BorrowedMessage(BorrowedMessagePlan plan, c10::intrusive_ptr<c10d::Work> lent,
                                 const Status& failed)
    : plan_(std::move(plan)), start_(plan_.deadline.clock().now()), state_(std::make_unique<State>()) {
  const MutexLock lock(state_->mutex);
  if (lent) {
    state_->lent = std::move(lent);
  } else {
    state_->end = {.status = plan_.describe(failed)};
  }
}

Status BorrowedMessage::finish(const Status& status, std::optional<Rank> source) const {
  c10::intrusive_ptr<c10d::Work> done;  // let go of with no lock held
  const MutexLock lock(state_->mutex);
  if (!state_->end) {
    state_->end = {
        .status = plan_.describe(status), .source = source, .took = plan_.deadline.clock().now() - start_};
    done = std::exchange(state_->lent, {});
  }
  return state_->end->status;
}

Status BorrowedMessage::wait_for(const c10::intrusive_ptr<c10d::Work>& lent, const Deadline& until,
                                 bool is_last) const {
  try {
    if (!lent->wait(milliseconds_to(until))) return finish(Status::aborted("c10d gave it up"), {});
    std::optional<Rank> source = plan_.from;
    if (plan_.call == "recvAnysource") source = Rank{lent->sourceRank()};
    return finish({}, source);
  } catch (...) {
    Status status = status_of_c10d(plan_.call, std::current_exception());
    if (status.code() == Code::kTimeout && !is_last) return plan_.describe(status);
    return finish(status, {});
  }
}

Status BorrowedMessage::wait(std::optional<Deadline> deadline) {
  c10::intrusive_ptr<c10d::Work> lent;
  {
    const MutexLock lock(state_->mutex);
    if (state_->end) return state_->end->status;
    lent = state_->lent;
  }
  const bool is_last = !deadline || deadline->at() >= plan_.deadline.at();
  return wait_for(lent, is_last ? plan_.deadline : *deadline, is_last);
}

bool BorrowedMessage::is_completed() const {
  c10::intrusive_ptr<c10d::Work> lent;
  {
    const MutexLock lock(state_->mutex);
    if (state_->end) return true;
    lent = state_->lent;
  }
  if (!lent->isCompleted()) return false;
  (void)wait_for(lent, plan_.deadline, true);
  return true;
}

Status BorrowedMessage::status() const {
  const MutexLock lock(state_->mutex);
  return state_->end ? state_->end->status : Status();
}

void BorrowedMessage::on_complete(std::function<void(const Status&)> then) {
  const auto wait_and_tell = [self = shared_from_this(), then = std::move(then)] { then(self->wait({})); };
  if (is_completed()) {
    wait_and_tell();
  } else {
    plan_.threads->run(wait_and_tell);
  }
}

std::optional<Rank> BorrowedMessage::source() const {
  const MutexLock lock(state_->mutex);
  return state_->end ? state_->end->source : std::nullopt;
}

Duration BorrowedMessage::duration() const {
  const MutexLock lock(state_->mutex);
  return state_->end ? state_->end->took : Duration{};
}

}  // namespace lockstep::tensor
