#include "lockstep/tensor/work_handle.h"

#include <ATen/ThreadLocalState.h>

#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/tensor/default_group.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/logger.h"
#include "lockstep/tensor/work_state.h"

namespace lockstep::tensor {

namespace {

// Also where nobody waits for the operation. The state of this thread is taken along: what was made in
// inference mode is written in it.
void finish_when_complete(backend::Work& work, const std::shared_ptr<Buffers>& buffers) {
  work.on_complete([buffers, here = at::ThreadLocalState()](const Status& status) {
    if (!status.ok()) return;
    const at::ThreadLocalStateGuard there(here);
    try {
      buffers->finish();
    } catch (const std::exception& error) {
      // Whoever waits tries again, and is told.
      kLog.warn(cat("an output that is not contiguous cannot be written: ", error.what()));
    }
  });
}

}  // namespace

WorkHandle::State::State(const char* call, backend::WorkPtr work, std::shared_ptr<Buffers> buffers,
                         std::shared_ptr<GroupState> group, CallStack stack)
    : call_(call),
      work_(std::move(work)),
      buffers_(std::move(buffers)),
      group_(std::move(group)),
      stack_(std::move(stack)) {
  if (buffers_->has_staged_outputs()) finish_when_complete(*work_, buffers_);
}

WorkHandle::State::~State() {
  if (!group_->is_of_this_process() || work_->is_completed()) return;
  if (const auto session = find_session()) session->keep(group_, work_);
}

Status WorkHandle::State::with_stack(const Status& status) const {
  if (status.ok() || !stack_) return status;
  return {status.code(), cat(status.message(), text_of(stack_)), status.cause()};
}

Status WorkHandle::State::wait(std::optional<Deadline> deadline) {
  const Status status = work_->wait(deadline);
  if (status.ok()) buffers_->finish();
  if (status.code() != Code::kTimeout || work_->is_completed()) return with_stack(status);
  // The time of this wait is over, not the operation's.
  return with_stack(Status::timeout(
      cat("rank ", at(), ": ", call_, " #", work_->sequence(), " of the group ", base::quoted(group_->name()),
          " has not ended before the timeout of this wait(); it goes on."),
      {.rank = at(), .op = call_, .sequence = work_->sequence(), .group = group_->name()}));
}

bool WorkHandle::State::is_completed() {
  if (!work_->is_completed()) return false;
  if (work_->status().ok()) buffers_->finish();
  return true;
}

void WorkHandle::State::on_complete(std::function<void()> then) {
  work_->on_complete([then = std::move(then)](const Status& /*status*/) { then(); });
}

Status WorkHandle::State::status() { return is_completed() ? with_stack(work_->status()) : Status(); }

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

void WorkHandle::on_complete(std::function<void()> then) const {
  if (!state_) return then();
  state_->on_complete(std::move(then));
}

std::vector<at::Tensor> WorkHandle::result() const {
  if (!state_ || !is_success()) return {};
  return state_->result();
}

int WorkHandle::source_rank() const { return state_ ? state_->source_rank() : -1; }
std::uint64_t WorkHandle::sequence() const { return state_ ? state_->work().sequence() : 0; }
Duration WorkHandle::duration() const { return state_ ? state_->work().duration() : Duration{}; }

}  // namespace lockstep::tensor
