#include "lockstep/tensor/work_handle.h"

#include <utility>

#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/work_state.h"

namespace lockstep::tensor {

WorkHandle::State::State(backend::WorkPtr work, std::shared_ptr<Buffers> buffers,
                         std::shared_ptr<GroupState> group)
    : work_(std::move(work)), buffers_(std::move(buffers)), group_(std::move(group)) {}

void WorkHandle::State::finish(const Status& status) {
  if (status.ok()) std::call_once(finished_, [this] { buffers_->finish(); });
}

Status WorkHandle::State::wait(std::optional<Deadline> deadline) {
  Status status = work_->wait(deadline);
  finish(status);
  return status;
}

bool WorkHandle::State::is_completed() {
  if (!work_->is_completed()) return false;
  finish(work_->status());
  return true;
}

Status WorkHandle::State::status() { return is_completed() ? work_->status() : Status(); }

int WorkHandle::State::source_rank() const {
  const std::optional<Rank> source = work_->source();
  return source ? group_->ranks()[static_cast<std::size_t>(source->value)] : -1;
}

void WorkHandle::wait(std::optional<Duration> timeout) const {
  if (!state_) return;
  std::optional<Deadline> deadline;
  if (timeout) deadline = Clock::steady().in(*timeout);
  throw_if_error(state_->wait(deadline), state_->at());
}

bool WorkHandle::is_completed() const { return !state_ || state_->is_completed(); }

bool WorkHandle::is_success() const { return !state_ || (state_->is_completed() && state_->status().ok()); }

std::exception_ptr WorkHandle::exception() const {
  if (!state_) return nullptr;
  const Status status = state_->status();
  return status.ok() ? nullptr : exception_of(status, state_->at());
}

std::vector<at::Tensor> WorkHandle::result() const {
  if (!state_ || !is_success()) return {};
  return state_->result();
}

int WorkHandle::source_rank() const { return state_ ? state_->source_rank() : -1; }
std::uint64_t WorkHandle::sequence() const { return state_ ? state_->work().sequence() : 0; }
Duration WorkHandle::duration() const { return state_ ? state_->work().duration() : Duration{}; }

}  // namespace lockstep::tensor
