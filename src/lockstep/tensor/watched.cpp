#include "lockstep/tensor/watched.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/tensor/logger.h"

namespace lockstep::tensor {
namespace {

backend::Counters counters_of(const Backend& backend) {
  const auto* counting = dynamic_cast<const backend::Counting*>(&backend);
  return counting != nullptr ? counting->counters() : backend::Counters{};
}

}  // namespace

bool Watched::wanted(const GroupState& state) {
  if (state.watch()->any()) return true;
  return state.is_profiled_here() && at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
}

Watched::Watched(const WatchedCall& call)
    : watch_(call.state.watch()), start_(Clock::steady().now()), speaks_(call.state.rank() == 0) {
  event_ = {.op = call.call,
            .group = call.state.name(),
            .rank = call.state.global_rank(),
            .sequence = call.peer ? 0 : call.backend.sequence() + 1,
            .peer = call.peer,
            .async_op = call.async_op};
  for (const at::Tensor* tensor : call.tensors) {
    event_.sizes.push_back(tensor->sizes().vec());
    event_.dtype = tensor->scalar_type();
    event_.bytes.value += tensor->nbytes();
  }
  if (speaks_ && watch_->level() != DebugLevel::kOff) counted_ = counters_of(call.backend);
  watch_->tell(event_);
  begin_range(call.tensors);
}

void Watched::begin_range(std::span<const at::Tensor* const> tensors) {
  auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (!callbacks) return;
  const auto range = std::make_shared<at::RecordFunction>(std::move(*callbacks));
  if (event_.async_op) range->_setAsync();
  std::vector<c10::IValue> inputs;
  if (range->needsInputs()) {
    for (const at::Tensor* tensor : tensors) inputs.emplace_back(*tensor);
  }
  range->before(cat("lockstep::", event_.op), c10::ArrayRef<const c10::IValue>(inputs.data(), inputs.size()));
  range->invalidateInputs();
  // It may be ended by another thread, as that of the thread that began it.
  end_range_ = at::wrapPropagateTLSState([range] { range->end(); });
}

OperationEvent Watched::event(OperationPhase phase, const Status& status, std::uint64_t sequence,
                              Duration took) const {
  OperationEvent copy = event_;
  copy.phase = phase;
  copy.sequence = sequence;
  copy.duration = took;
  copy.status = status;
  return copy;
}

void Watched::complete(const Status& status, std::uint64_t sequence, std::optional<Duration> took) {
  const base::TimePoint now = Clock::steady().now();
  if (end_range_) end_range_();
  if (!watch_->any()) return;
  const OperationEvent ended =
      event(OperationPhase::kComplete, status, sequence, took.value_or(now - start_));
  watch_->tell(ended);
  if (!speaks_ || watch_->level() == DebugLevel::kOff) return;
  const std::string line = watch_->summarize(ended, counted_, now);
  if (!line.empty()) kLog.info(line);
}

void Watched::returned(const Status& status, std::uint64_t sequence) const {
  if (watch_->any())
    watch_->tell(event(OperationPhase::kPost, status, sequence, Clock::steady().now() - start_));
}

void Watched::complete_with(const std::shared_ptr<Watched>& watched, backend::Work& work) {
  work.on_complete(
      [watched, sequence = work.sequence()](const Status& status) { watched->complete(status, sequence); });
}

}  // namespace lockstep::tensor
