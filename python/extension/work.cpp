#include "extension/work.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "extension/errors.h"
#include "extension/hold_count.h"
#include "extension/interrupts.h"
#include "lockstep/base/text.h"

namespace lockstep::python {
namespace {

using c10::ivalue::Future;
using std::chrono::milliseconds;

// How often a wait that is no collective's looks for signals.
constexpr Duration kWaitStep = milliseconds(100);

c10::TypePtr type_of(const Outputs& outputs) {
  const auto list = c10::ListType::create(c10::TensorType::get());
  return outputs.size() > 1 ? c10::ListType::create(list) : list;
}

c10::IValue value_of(const Outputs& outputs) {
  if (outputs.empty()) return c10::IValue(std::vector<at::Tensor>());
  return outputs.size() > 1 ? c10::IValue(outputs) : c10::IValue(outputs.front());
}

HoldCount g_works;  // that a thread of the core has still to let go of
HoldCount g_calls;  // that wait in a group

// A work in the hands of the core.
class HeldWork {
 public:
  explicit HeldWork(c10::intrusive_ptr<LockstepWork> work) : hold_(g_works), work_(std::move(work)) {}
  LockstepWork& operator*() const { return *work_; }

 private:
  const HoldCount::Hold hold_;  // the last to go
  const c10::intrusive_ptr<LockstepWork> work_;
};

c10d::WorkResult result_of(const std::exception_ptr& error) {
  if (!error) return c10d::WorkResult::SUCCESS;
  try {
    std::rethrow_exception(error);
  } catch (const tensor::TimeoutError&) {
    return c10d::WorkResult::TIMEOUT;
  } catch (...) {
    return c10d::WorkResult::COMM_ERROR;
  }
}

Status interrupted(const tensor::GroupState& group) {
  return Status::aborted(cat("rank ", group.global_rank(), " was interrupted in an operation of the group ",
                             base::quoted(group.name()), "."),
                         {.rank = Rank{group.global_rank()}, .group = group.name()});
}

}  // namespace

void run_interruptibly(const Within& group, c10::function_ref<void()> body) {
  const std::function<void()> stop = [&] {
    try {
      group.state->any_backend("interrupt")->abort(interrupted(*group.state));
    } catch (const tensor::InvalidArgument&) {  // it was destroyed meanwhile, so nothing is waited for
    }
  };
  try {
    const WithoutGil without_gil;
    const HoldCount::Hold call(g_calls);
    const Interruptible interruptible(stop);
    translated(*group.names, body);
  } catch (...) {
    check_signals();  // an interrupt, rather than the end of the group that it has caused
    throw;
  }
}

void wait_for_works(const Deadline& deadline) {
  g_calls.wait_for_none(deadline);
  g_works.wait_for_none(deadline);
}

LockstepWork::LockstepWork(WorkPlan plan)
    : c10d::Work(plan.group.state->rank(), plan.type, plan.title.empty() ? nullptr : plan.title.c_str(),
                 plan.inputs),
      plan_(std::move(plan)) {}

c10::intrusive_ptr<LockstepWork> LockstepWork::start(
    WorkPlan plan, c10::function_ref<tensor::WorkHandle(std::optional<Traced>&)> begin) {
  auto work = c10::make_intrusive<LockstepWork>(std::move(plan));
  bool completed = false;
  try {
    run_interruptibly(work->plan_.group, [&] {
      work->handle_ = begin(work->traced_);
      completed = work->handle_.is_completed();
    });
  } catch (...) {
    work->finish(std::current_exception());  // the profiler is told that it is over
    throw;
  }
  if (completed) {
    work->settle();
  } else {
    work->handle_.on_complete([held = std::make_shared<HeldWork>(work)] { (**held).settle(); });
  }
  return work;
}

void LockstepWork::settle() {
  std::call_once(settled_, [this] { ended(); });
}

void LockstepWork::ended() {
  const std::exception_ptr error = failure();
  if (traced_ && !error) traced_->succeeded();
  traced_.reset();
  finish(error);
  bool wanted = false;
  {
    const MutexLock lock(futures_mutex_);
    ended_ = true;
    wanted = future_ || result_;
  }
  if (!wanted) return;
  plan_.pool->run(
      [self = c10::intrusive_ptr<LockstepWork>::reclaim_copy(this)] { self->complete_futures(); });
}

void LockstepWork::complete(Future& future) const {
  if (const std::exception_ptr error = failure()) {
    future.setError(error);
  } else {
    future.markCompleted(value_of(plan_.outputs));
  }
}

void LockstepWork::complete_result(Future& result) const {
  result.markCompleted(c10::IValue(static_cast<std::int64_t>(result_of(handle_.exception()))));
}

void LockstepWork::complete_futures() {
  c10::intrusive_ptr<Future> future;
  c10::intrusive_ptr<Future> result;
  {
    const MutexLock lock(futures_mutex_);
    future = future_;
    result = result_;
  }
  // One that was made late is complete.
  if (result && !result->completed()) complete_result(*result);
  if (future && !future->completed()) complete(*future);
}

c10::intrusive_ptr<Future> LockstepWork::getFuture() {
  const WithoutGil without_gil;
  const bool completed = handle_.is_completed();  // may settle() this work, so before the lock
  const MutexLock lock(futures_mutex_);
  if (future_) return future_;
  future_ = c10::make_intrusive<Future>(type_of(plan_.outputs));
  if (ended_ || completed) complete(*future_);  // nothing hangs on it yet
  return future_;
}

c10::intrusive_ptr<Future> LockstepWork::getFutureResult() {
  const WithoutGil without_gil;
  const bool completed = handle_.is_completed();
  const MutexLock lock(futures_mutex_);
  if (result_) return result_;
  result_ = c10::make_intrusive<Future>(c10::AnyEnumType::get());
  if (ended_ || completed) complete_result(*result_);
  return result_;
}

void LockstepWork::wait_for_future() {
  c10::intrusive_ptr<Future> future;
  {
    const MutexLock lock(futures_mutex_);
    future = future_;
  }
  if (!future) return;
  const WithoutGil without_gil;
  future->wait();
}

std::exception_ptr LockstepWork::exception() const {
  const WithoutGil without_gil;
  return failure();
}

std::exception_ptr LockstepWork::failure() const {
  try {
    if (const std::exception_ptr error = handle_.exception()) std::rethrow_exception(error);
  } catch (const tensor::InvalidArgument& error) {
    return torch_exception(plan_.group.names->told(error.status()));
  } catch (const tensor::DistError& error) {
    return torch_exception(plan_.group.names->told(error.status()));
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

int LockstepWork::sourceRank() const {
  const int global = handle_.source_rank();
  return global < 0 ? -1 : plan_.group.state->group_rank_of(global);
}

std::vector<at::Tensor> LockstepWork::result() {
  TORCH_CHECK(isCompleted(), "The operation has not completed; wait for it before its result is asked for.");
  TORCH_CHECK(plan_.outputs.size() <= 1,
              "The result of this operation is a list of lists; take it from get_future().value().");
  return plan_.outputs.empty() ? std::vector<at::Tensor>() : plan_.outputs.front();
}

bool LockstepWork::isCompleted() {
  const WithoutGil without_gil;
  if (!handle_.is_completed()) return false;
  settle();
  return true;
}

bool LockstepWork::isSuccess() const {
  const WithoutGil without_gil;
  return handle_.is_success();
}

bool LockstepWork::wait(milliseconds timeout) {
  try {
    if (!isSuccess()) wait_for_operation(timeout);
  } catch (...) {
    (void)isCompleted();  // else its own time is over, and not the operation's
    throw;
  }
  (void)isCompleted();
  wait_for_future();
  return true;
}

void LockstepWork::wait_to_end(Duration patience) {
  if (isCompleted()) return;
  run_interruptibly(plan_.group, [&] {
    try {
      handle_.wait(patience);
    } catch (const std::exception&) {  // its error is for who waits for it
    }
  });
  (void)isCompleted();
}

void LockstepWork::wait_for_operation(milliseconds timeout) const {
  std::optional<Deadline> deadline;
  if (timeout > milliseconds(0)) deadline = Clock::steady().in(timeout);
  if (plan_.is_message) {
    const WithoutGil without_gil;
    const HoldCount::Hold call(g_calls);
    wait_in_steps(deadline);
  } else {
    run_interruptibly(plan_.group, [&] {
      handle_.wait(deadline ? std::optional<Duration>(deadline->remaining()) : std::nullopt);
    });
  }
}

// A message can be left where it is: an interrupt ends the wait, and not the group.
void LockstepWork::wait_in_steps(std::optional<Deadline> deadline) const {
  while (!handle_.is_completed() && !(deadline && deadline->expired())) {
    const Duration step = deadline ? std::min(kWaitStep, deadline->remaining()) : kWaitStep;
    try {
      handle_.wait(step);
    } catch (const tensor::TimeoutError&) {
      check_signals();
      continue;
    } catch (...) {
      break;  // it is complete
    }
  }
  translated(*plan_.group.names, [&] { handle_.wait(Duration::zero()); });
}

void LockstepWork::abort() {
  translated(*plan_.group.names, [&] {
    plan_.group.state->any_backend("abort")->abort(Status::aborted("The operation was aborted."));
  });
}

float LockstepWork::getDuration() const {
  return std::chrono::duration<float, std::milli>(handle_.duration()).count();
}

c10::intrusive_ptr<c10d::Work> CoalescedWork::of_scope(int rank, Works works) {
  if (works.size() == 1) return works.front();
  return c10::make_intrusive<CoalescedWork>(rank, std::move(works), Gives::kNothing);
}

c10::intrusive_ptr<c10d::Work> CoalescedWork::of_those_left(int rank, Works works) {
  std::erase(works, nullptr);
  if (works.empty()) return nullptr;
  if (works.size() == 1) return works.front();
  return c10::make_intrusive<CoalescedWork>(rank, std::move(works), Gives::kOutputs);
}

CoalescedWork::CoalescedWork(int rank, Works works, Gives gives)
    : c10d::Work(rank, c10d::OpType::COALESCED), works_(std::move(works)), gives_(gives) {}

bool CoalescedWork::isCompleted() {
  for (const auto& work : works_) {
    if (!work->isCompleted()) return false;
  }
  return true;
}

bool CoalescedWork::isSuccess() const {
  for (const auto& work : works_) {
    if (!work->isSuccess()) return false;
  }
  return true;
}

std::exception_ptr CoalescedWork::exception() const {
  for (const auto& work : works_) {
    if (std::exception_ptr error = work->exception()) return error;
  }
  return nullptr;
}

int CoalescedWork::sourceRank() const {
  const c10d::Work* received = nullptr;
  for (const auto& work : works_) {
    const c10d::OpType type = work->retrieveOpType();
    if (type != c10d::OpType::RECV && type != c10d::OpType::RECVANYSOURCE) continue;
    if (received != nullptr) return -1;
    received = work.get();
  }
  return received == nullptr ? -1 : received->sourceRank();
}

std::vector<at::Tensor> CoalescedWork::result() {
  std::vector<at::Tensor> all;
  if (gives_ == Gives::kNothing) return all;
  for (const auto& work : works_) {
    for (at::Tensor& tensor : work->result()) all.push_back(std::move(tensor));
  }
  return all;
}

bool CoalescedWork::wait(milliseconds timeout) {
  const Deadline deadline = Clock::steady().in(timeout);
  for (const auto& work : works_) {
    // 0 is no timeout.
    const auto left = std::max(std::chrono::ceil<milliseconds>(deadline.remaining()), milliseconds(1));
    work->wait(timeout > milliseconds(0) ? left : timeout);
  }
  return true;
}

void CoalescedWork::abort() {
  for (const auto& work : works_) work->abort();
}

float CoalescedWork::getDuration() const {
  float longest = 0;
  for (const auto& work : works_) longest = std::max(longest, work->getDuration());
  return longest;
}

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
milliseconds CoalescedWork::getTimeout() const {
  milliseconds longest = c10d::kUnsetTimeout;
  for (const auto& work : works_) longest = std::max(longest, work->getTimeout());
  return longest;
}
#endif

std::uint64_t CoalescedWork::getSequencenumber() const {
  return works_.empty() ? 0 : works_.back()->getSequencenumber();
}

c10::intrusive_ptr<Future> CoalescedWork::getFuture() {
  const auto type = c10::ListType::create(c10::TensorType::get());
  c10::List<c10::intrusive_ptr<Future>> futures(c10::FutureType::create(type));
  for (const auto& work : works_) futures.push_back(work->getFuture());
  return c10::collectAll(futures)->then(
      [self = c10::intrusive_ptr<CoalescedWork>::reclaim_copy(this)](Future& all) {
        (void)all.value();  // throws what the first has thrown that failed
        return c10::IValue(self->result());
      },
      type);
}

c10::intrusive_ptr<Future> CoalescedWork::getFutureResult() {
  const auto type = c10::AnyEnumType::get();
  c10::List<c10::intrusive_ptr<Future>> futures(c10::FutureType::create(type));
  for (const auto& work : works_) futures.push_back(work->getFutureResult());
  return c10::collectAll(futures)->then(
      [futures](Future& /*all*/) {
        for (std::size_t i = 0; i < futures.size(); ++i) {
          c10::IValue result = futures.get(i)->value();
          if (result.toInt() != static_cast<std::int64_t>(c10d::WorkResult::SUCCESS)) return result;
        }
        return c10::IValue(static_cast<std::int64_t>(c10d::WorkResult::SUCCESS));
      },
      type);
}

}  // namespace lockstep::python
