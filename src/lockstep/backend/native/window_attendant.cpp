#include "lockstep/backend/native/window_attendant.h"

#include "lockstep/backend/logger.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/text.h"
#include "lockstep/base/thread.h"

namespace lockstep::backend {
WorkPtr send_goodbye(Backend& group, Rank to) {
  const auto goodbye = std::make_shared<const WindowRequest>(WindowRequest{.kind = WindowRequest::kLeave});
  return group.send(to, kWindowRequestTag, view_of(*goodbye), {.keep = goodbye});
}

WindowAttendant::WindowAttendant(Backend& group, ByteSpan own, const Clock& clock)
    : group_(group),
      own_(own),
      clock_(clock),
      fork_generation_(base::fork_generation()),
      left_(static_cast<std::size_t>(group.size().value)) {}

Result<std::unique_ptr<WindowAttendant>> WindowAttendant::start(Backend& group, ByteSpan own,
                                                                const Clock& clock) {
  std::unique_ptr<WindowAttendant> attendant(new WindowAttendant(group, own, clock));
  LOCKSTEP_ASSIGN(attendant->thread_,
                  base::start_thread("lockstep-window", [self = attendant.get()] { self->attend(); }));
  return attendant;
}

WindowAttendant::~WindowAttendant() {
  if (!thread_.joinable()) return;
  if (base::fork_generation() != fork_generation_) {
    base::abandon(thread_);
    return;
  }
  (void)send_goodbye(group_, group_.rank());
  thread_.join();
}

void WindowAttendant::attend() {
  for (;;) {
    WindowRequest request;
    const WorkPtr work =
        group_.recv(std::nullopt, kWindowRequestTag, span_of(request), {.deadline = clock_.in(kForLong)});
    const Status status = work->wait();
    if (status.code() == Code::kTimeout || status.code() == Code::kInvalid) continue;
    if (!status.ok()) return;
    const Rank from = work->source().value_or(group_.rank());
    if (request.kind != WindowRequest::kLeave) {
      answer(from, request);
    } else if (from == group_.rank()) {
      return;
    } else {
      left_[static_cast<std::size_t>(from.value)] = true;
    }
  }
}

void WindowAttendant::answer(Rank from, const WindowRequest& request) {
  const std::uint64_t whole = own_.size();
  const bool known = request.kind == WindowRequest::kPut || request.kind == WindowRequest::kGet;
  if (!known || request.offset > whole || request.size > whole - request.offset) {
    kLog.warn(cat("rank ", group_.world_rank(from), " asks for something that a window does not have."));
    return;
  }
  const ByteSpan bytes = own_.subspan(request.offset, request.size);
  Status status;
  if (request.kind == WindowRequest::kGet) {
    status = group_.send(from, reply_tag(request.number), bytes)->wait();
  } else {
    status = group_.recv(from, payload_tag(request.number), bytes)->wait();
    const std::byte done{1};
    if (status.ok()) status = group_.send(from, reply_tag(request.number), {&done, 1})->wait();
  }
  if (!status.ok() && status.failure() != Failure::kClosed)
    kLog.debug(cat("a request of rank ", group_.world_rank(from),
                   " for a window was not answered: ", status.message()));
}

}  // namespace lockstep::backend
