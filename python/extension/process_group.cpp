#include "extension/process_group.h"

#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <utility>

#include "extension/errors.h"
#include "extension/interrupts.h"
#include "lockstep/base/text.h"

namespace lockstep::python {

c10::intrusive_ptr<ProcessGroupLockstep> ProcessGroupLockstep::create(const GroupRequest& request) {
  return c10::make_intrusive<ProcessGroupLockstep>(make_group(request), request.options);
}

ProcessGroupLockstep::ProcessGroupLockstep(MadeGroup made, OptionsPtr options)
    : c10d::Backend(made.state->rank(), made.state->size()),
      options_(std::move(options)),
      state_(std::move(made.state)),
      stay_(std::move(made.stay)),
      pool_(stay_->pool) {
  init();
}

ProcessGroupLockstep::~ProcessGroupLockstep() { shutdown(); }

void ProcessGroupLockstep::shutdown() {
  const WithoutGil without_gil;
  std::shared_ptr<Stay> stay;  // let go of with no lock held
  {
    const MutexLock lock(mutex_);
    stay = std::exchange(stay_, nullptr);
  }
  state_->close();
}

void ProcessGroupLockstep::abort() {
  if (state_->is_closed()) return;
  translated([&] {
    state_->any_backend("abort")->abort(
        Status::aborted(cat("rank ", state_->global_rank(), " has aborted the group ", state_->name(), "."),
                        {.rank = Rank{state_->global_rank()}, .group = state_->name()}));
  });
}

void ProcessGroupLockstep::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  state_->set_timeout(timeout);
}

std::uint64_t ProcessGroupLockstep::getSequenceNumberForGroup() {
  return translated([&] { return state_->any_backend("get_sequence_number")->sequence(); });
}

c10d::ErrorType ProcessGroupLockstep::getError() {
  const Status failure = translated([&] { return state_->any_backend("get_error")->failure(); });
  if (failure.ok()) return c10d::ErrorType::SUCCESS;
  if (failure.code() == Code::kTimeout) return c10d::ErrorType::TIMEOUT;
  const bool here = failure.cause().rank == Rank{state_->global_rank()};
  return here ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::REMOTE_ERROR;
}

std::shared_ptr<Stay> ProcessGroupLockstep::stay(const char* call) const {
  const MutexLock lock(mutex_);
  if (!stay_) {
    throw_torch(Status::invalid(
        cat("rank ", state_->global_rank(), ": ", call, ": the group ", state_->name(), " was destroyed.")));
  }
  return stay_;
}

at::Tensor ProcessGroupLockstep::empty_resident(at::IntArrayRef sizes, at::ScalarType type) {
  std::uint64_t bytes = c10::elementSize(type);
  for (const std::int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes)) {
      throw_torch(Status::invalid(cat("rank ", state_->global_rank(), ": empty_resident: the size ", size,
                                      " is negative, or makes the tensor too large.")));
    }
  }
  const auto options = at::TensorOptions().dtype(type);
  if (bytes == 0) return at::empty(sizes, options);
  auto memory = stay("empty_resident")->world->allocate(Bytes{bytes});
  if (!memory.ok()) {
    throw_torch(memory.status().with_prefix(cat("rank ", state_->global_rank(), ": empty_resident: ")));
  }
  return at::from_blob(
      memory->bytes.data(), sizes, [owner = memory->owner](void* /*data*/) {}, options);
}

at::Tensor ProcessGroupLockstep::allocateTensor(long size, at::TensorOptions options) {
  if (options.device().type() != c10::DeviceType::CPU) {
    throw_torch(Status::invalid(cat("rank ", state_->global_rank(), ": a tensor on ", options.device().str(),
                                    " cannot be resident; only CPU tensors can.")));
  }
  return empty_resident({size}, c10::typeMetaToScalarType(options.dtype()));
}

OptionsPtr ProcessGroupLockstep::options_for(const c10::intrusive_ptr<c10d::Backend::Options>& given) const {
  auto options = c10::make_intrusive<python::Options>(given ? given->timeout : options_->timeout);
  if (given) {
    options->group_name = given->group_name;
    options->group_desc = given->group_desc;
  }
  return options;
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupLockstep::split(
    const c10::intrusive_ptr<c10d::Store>& /*store*/, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  if (std::find(ranks.begin(), ranks.end(), getRank()) == ranks.end()) return nullptr;
  std::vector<Rank> members;
  for (const int rank : ranks) {
    if (rank < 0 || rank >= getSize()) {
      throw_torch(Status::invalid(cat("rank ", state_->global_rank(), ": split: ", rank,
                                      " is no rank of the group ", state_->name(), ".")));
    }
    members.push_back(state_->world_ranks()[static_cast<std::size_t>(rank)]);
  }
  const WithoutGil without_gil;
  const OptionsPtr options = options_for(opts);
  return c10::make_intrusive<ProcessGroupLockstep>(
      make_group_in(stay("split"), members, options->group_name, options), options);
}

// The world is shrunk with its default group; of another group, those that are left make one of their own.
c10::intrusive_ptr<c10d::Backend> ProcessGroupLockstep::shrink(
    const std::vector<std::int64_t>& ranks_to_exclude, int /*shrink_flags*/,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts_override) {
  std::vector<Rank> left;
  std::vector<Rank> excluded;
  for (int rank = 0; rank < getSize(); ++rank) {
    const bool out =
        std::find(ranks_to_exclude.begin(), ranks_to_exclude.end(), rank) != ranks_to_exclude.end();
    (out ? excluded : left).push_back(state_->world_ranks()[static_cast<std::size_t>(rank)]);
  }
  const WithoutGil without_gil;
  const std::shared_ptr<Stay> here = stay("shrink");
  const OptionsPtr options = options_for(opts_override);
  const bool whole_world = state_->world_ranks() == here->left();
  return c10::make_intrusive<ProcessGroupLockstep>(
      whole_world ? shrink_world(here, excluded, options)
                  : make_group_in(here, left, options->group_name, options),
      options);
}

void ProcessGroupLockstep::startCoalescing() {
  const MutexLock lock(mutex_);
  coalescing_[std::this_thread::get_id()].clear();
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::endCoalescing() {
  std::vector<WorkPtr> works;
  {
    const MutexLock lock(mutex_);
    const auto found = coalescing_.find(std::this_thread::get_id());
    if (found != coalescing_.end()) works = std::move(coalescing_.extract(found).mapped());
  }
  return CoalescedWork::of(getRank(), std::move(works));
}

void ProcessGroupLockstep::collect(const WorkPtr& work) {
  const MutexLock lock(mutex_);
  if (coalescing_.empty()) return;
  const auto found = coalescing_.find(std::this_thread::get_id());
  if (found != coalescing_.end()) found->second.push_back(work);
}

bool ProcessGroupLockstep::is_coalescing() const {
  const MutexLock lock(mutex_);
  return !coalescing_.empty() && coalescing_.contains(std::this_thread::get_id());
}

std::optional<Traced> ProcessGroupLockstep::note(const Named& named) {
  if (!state_->is_of_this_process()) return std::nullopt;
  TracedOperation operation{.name = named.name, .peer = named.peer.value_or(-1)};
  operation.timeout_ms = (named.timeout == c10d::kUnsetTimeout ? options_->timeout : named.timeout).count();
  operation.inputs.add(named.inputs);
  operation.outputs.add(named.output);
  for (const Tensors& list : named.outputs) operation.outputs.add(list);
  {
    const MutexLock lock(mutex_);
    if (!traced_) {
      traced_ = std::make_shared<TracedGroup>(TracedGroup{.name = state_->name(),
                                                          .description = getGroupDesc(),
                                                          .ranks = state_->ranks(),
                                                          .rank = getRank()});
    }
    operation.group = traced_;
    operation.sequence = named.peer ? ++messages_ : ++collectives_;
  }
  return Traced(named.peer ? Trace::of_messages() : Trace::of_collectives(), std::move(operation));
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::issue(const Named& named, Begin begin) {
  std::optional<Traced> traced = note(named);
  if (named.async_op || at::hasCallbacks() || is_coalescing()) return start(named, begin, std::move(traced));
  run_interruptibly(state_, [&] { (void)begin(); });
  if (traced) traced->succeeded();
  return nullptr;
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::start(const Named& named, Begin begin,
                                                           std::optional<Traced> traced) {
  WorkPlan plan{.type = named.type,
                .is_message = named.peer.has_value(),
                .group = state_,
                .pool = pool_,
                .traced = std::move(traced)};
  if (!named.output.empty()) plan.outputs.push_back(named.output.vec());
  for (const Tensors& list : named.outputs) plan.outputs.push_back(list);
  if (at::hasCallbacks()) {
    plan.title = cat(profiling_name_, ":", named.name);
    plan.inputs = named.inputs.vec();
  }
  WorkPtr work = LockstepWork::start(std::move(plan), begin);
  collect(work);
  return work;
}

const at::Tensor& ProcessGroupLockstep::only(const char* call, const Tensors& tensors) const {
  if (tensors.size() == 1) return tensors.front();
  throw_torch(Status::invalid(cat("rank ", state_->global_rank(), ": ", call,
                                  " takes one tensor, and was given ", tensors.size(), ".")));
}

const std::vector<at::Tensor>& ProcessGroupLockstep::only(const char* call, const TensorLists& lists) const {
  if (lists.size() == 1) return lists.front();
  throw_torch(Status::invalid(cat("rank ", state_->global_rank(), ": ", call,
                                  " takes one list of tensors, and was given ", lists.size(), ".")));
}

}  // namespace lockstep::python
