#include "extension/process_group.h"

#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "extension/errors.h"
#include "extension/interrupts.h"
#include "lockstep/base/text.h"

namespace lockstep::python {
namespace {

// For the store's server to end, whose rank may leave a moment later.
constexpr Duration kServerEnd = std::chrono::seconds(1);

}  // namespace

c10::intrusive_ptr<ProcessGroupLockstep> ProcessGroupLockstep::create(const GroupRequest& request) {
  return c10::make_intrusive<ProcessGroupLockstep>(make_group(request), request.options);
}

ProcessGroupLockstep::ProcessGroupLockstep(MadeGroup made, OptionsPtr options)
    : c10d::Backend(made.state->rank(), made.state->size()),
      standing_(made.standing),
      within_{std::move(made.state), std::move(made.names)},
      options_(std::move(options)),
      stay_(std::move(made.stay)),
      pool_(stay_->pool) {
  init();
}

ProcessGroupLockstep::~ProcessGroupLockstep() { leave(); }

void ProcessGroupLockstep::shutdown() {
  try {
    drain();
  } catch (...) {  // by an interrupt
    leave();
    throw;
  }
  leave();
}

void ProcessGroupLockstep::drain() {
  if (!within_.state->is_of_this_process()) return;
  c10::intrusive_ptr<LockstepWork> last;
  std::shared_ptr<Stay> stay;
  {
    const MutexLock lock(mutex_);
    if (last_) last = last_->lock();
    stay = stay_;
  }
  if (!last || !stay) return;
  last->wait_to_end(stay->patience_to_drain());
  stay->note_drained(last->isCompleted());
}

void ProcessGroupLockstep::leave() {
  const WithoutGil without_gil;
  if (!within_.state->is_of_this_process()) return;  // who held the lock then is not here
  std::shared_ptr<Stay> stay;                        // let go of with no lock held
  {
    const MutexLock lock(mutex_);
    stay = std::exchange(stay_, nullptr);
  }
  const bool is_left = stay && standing_ != Standing::kSome && stay->remove_own();
  const std::shared_ptr<TorchStore> store = is_left ? stay->store : nullptr;
  if (store) store->leave();
  within_.state->close();
  stay.reset();
  if (store) store->wait_for_end(Clock::steady().in(kServerEnd));
}

void ProcessGroupLockstep::abort() {
  if (within_.state->is_closed()) return;
  translated(*within_.names, [&] {
    within_.state->any_backend("abort")->abort(
        Status::aborted(cat("rank ", within_.state->global_rank(), " has aborted the group ",
                            base::quoted(within_.state->name()), "."),
                        {.rank = Rank{within_.state->global_rank()}, .group = within_.state->name()}));
  });
}

void ProcessGroupLockstep::setTimeout(std::chrono::milliseconds timeout) {
  translated(*within_.names, [&] { within_.state->set_timeout(timeout); });
  const auto changed = c10::make_intrusive<python::Options>(*options());
  changed->timeout = timeout;
  const MutexLock lock(mutex_);
  options_ = changed;
}

OptionsPtr ProcessGroupLockstep::options() const {
  const MutexLock lock(mutex_);
  return options_;
}

std::uint64_t ProcessGroupLockstep::getSequenceNumberForGroup() {
  return translated(*within_.names,
                    [&] { return within_.state->any_backend("get_sequence_number")->sequence(); });
}

c10d::ErrorType ProcessGroupLockstep::getError() {
  const Status failure =
      translated(*within_.names, [&] { return within_.state->any_backend("get_error")->failure(); });
  if (failure.ok()) return c10d::ErrorType::SUCCESS;
  if (failure.code() == Code::kTimeout) return c10d::ErrorType::TIMEOUT;
  // Who is lost is the peer, and the rank is that of whoever reports it.
  const std::optional<Rank> about = failure.cause().peer ? failure.cause().peer : failure.cause().rank;
  const bool here = about == Rank{within_.state->global_rank()};
  return here ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::REMOTE_ERROR;
}

std::shared_ptr<Stay> ProcessGroupLockstep::stay(const char* call) const {
  const MutexLock lock(mutex_);
  if (!stay_) {
    throw_torch(Status::invalid(cat("rank ", within_.names->own(), ": ", call, ": the group ",
                                    base::quoted(within_.state->name()), " was destroyed.")));
  }
  return stay_;
}

at::Tensor ProcessGroupLockstep::empty_resident(at::IntArrayRef sizes, at::ScalarType type) {
  std::uint64_t bytes = c10::elementSize(type);
  for (const std::int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes)) {
      throw_torch(Status::invalid(cat("rank ", within_.names->own(), ": empty_resident: the size ", size,
                                      " is negative, or makes the tensor too large.")));
    }
  }
  const auto options = at::TensorOptions().dtype(type);
  if (bytes == 0) return at::empty(sizes, options);
  auto memory = stay("empty_resident")->world->allocate(Bytes{bytes});
  if (!memory.ok()) {
    const Status why = memory.status().with_prefix(cat("rank ", within_.names->own(), ": empty_resident: "));
    const bool is_full = why.failure() == Failure::kNoMemory || why.failure() == Failure::kNoSpace;
    if (is_full) C10_THROW_ERROR(OutOfMemoryError, std::string(why.message()));  // and the group lives on
    throw_torch(why);
  }
  return at::from_blob(
      memory->bytes.data(), sizes, [owner = memory->owner](void* /*data*/) {}, options);
}

at::Tensor ProcessGroupLockstep::allocateTensor(long size, at::TensorOptions options) {
  if (options.device().type() != c10::DeviceType::CPU) {
    throw_torch(Status::invalid(cat("rank ", within_.names->own(), ": a tensor on ", options.device().str(),
                                    " cannot be resident; only CPU tensors can.")));
  }
  return empty_resident({size}, c10::typeMetaToScalarType(options.dtype()));
}

OptionsPtr ProcessGroupLockstep::options_for(const c10::intrusive_ptr<c10d::Backend::Options>& given) const {
  const OptionsPtr own = this->options();
  auto options = c10::make_intrusive<python::Options>(given ? given->timeout : own->timeout);
  const auto* const ours = dynamic_cast<const python::Options*>(given.get());
  const python::Options& said = ours == nullptr ? *own : *ours;
  options->stall_after = said.stall_after;
  options->heap_capacity = said.heap_capacity;
  options->threads = said.threads;
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
  std::vector<int> torchs;
  for (const int rank : ranks) {
    if (rank < 0 || rank >= getSize()) {
      throw_torch(
          Status::invalid(cat("rank ", within_.names->own(), ": split: ", rank, " is no rank of the group ",
                              base::quoted(within_.state->name()), ".")));
    }
    members.push_back(within_.state->world_ranks()[static_cast<std::size_t>(rank)]);
    torchs.push_back(within_.names->torchs()[static_cast<std::size_t>(rank)]);
  }
  const WithoutGil without_gil;
  const OptionsPtr options = options_for(opts);
  if (auto same = split_already(options->group_name, ranks)) return same;
  c10::intrusive_ptr<c10d::Backend> made = c10::make_intrusive<ProcessGroupLockstep>(
      make_group_in(stay("split"), {members, torchs}, options->group_name, options), options);
  const MutexLock lock(mutex_);
  split_ = Split{
      .name = options->group_name, .ranks = ranks, .group = c10::weak_intrusive_ptr<c10d::Backend>(made)};
  return made;
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupLockstep::split_already(const std::string& name,
                                                                      const std::vector<int>& ranks) {
  const MutexLock lock(mutex_);
  const bool is_same = split_ && !name.empty() && split_->name == name && split_->ranks == ranks;
  return is_same ? split_->group.lock() : nullptr;
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupLockstep::merge(
    const c10::intrusive_ptr<c10d::Store>& store, const c10::intrusive_ptr<c10d::Backend::Options>& opts,
    const int& rank, const int& size) {
  const WithoutGil without_gil;
  const OptionsPtr options = options_for(opts);
  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  return c10::make_intrusive<ProcessGroupLockstep>(make_world({.store = store,
                                                               .rank = rank,
                                                               .size = size,
                                                               .name = options->group_name,
                                                               .members = std::move(members),
                                                               .options = options}),
                                                   options);
}

// The world is shrunk with the group that is its own; of another, those that are left make one of their own.
c10::intrusive_ptr<c10d::Backend> ProcessGroupLockstep::shrink(
    const std::vector<std::int64_t>& ranks_to_exclude, int /*shrink_flags*/,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts_override) {
  Members left;
  for (int rank = 0; rank < getSize(); ++rank) {
    const bool out =
        std::find(ranks_to_exclude.begin(), ranks_to_exclude.end(), rank) != ranks_to_exclude.end();
    if (out) continue;
    left.world.push_back(within_.state->world_ranks()[static_cast<std::size_t>(rank)]);
    left.torchs.push_back(within_.names->torchs()[static_cast<std::size_t>(rank)]);
  }
  const WithoutGil without_gil;
  const std::shared_ptr<Stay> here = stay("shrink");
  const OptionsPtr options = options_for(opts_override);
  return c10::make_intrusive<ProcessGroupLockstep>(
      standing_ == Standing::kSome ? make_group_in(here, left, options->group_name, options)
                                   : shrink_world(here, standing_, left, options),
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
  return CoalescedWork::of_scope(getRank(), std::move(works));
}

void ProcessGroupLockstep::collect(const WorkPtr& work) {
  const MutexLock lock(mutex_);
  if (coalescing_.empty()) return;
  const auto found = coalescing_.find(std::this_thread::get_id());
  if (found == coalescing_.end()) return;
  std::vector<WorkPtr>& works = found->second;
  // torch does not end a scope that an exception has left, and what has ended well need not be waited for.
  std::erase_if(works, [](const WorkPtr& held) { return held->isSuccess(); });
  works.push_back(work);
}

bool ProcessGroupLockstep::is_coalescing() const {
  const MutexLock lock(mutex_);
  return !coalescing_.empty() && coalescing_.contains(std::this_thread::get_id());
}

std::chrono::milliseconds ProcessGroupLockstep::timeout_of(const Named& named) const {
  return named.timeout == c10d::kUnsetTimeout ? options_->timeout : named.timeout;
}

void ProcessGroupLockstep::note(const Named& named, std::optional<Traced>& traced) {
  TracedOperation operation{.name = named.name, .peer = named.peer.value_or(-1)};
  operation.inputs.add(named.inputs);
  operation.outputs.add(named.output);
  for (const Tensors& list : named.outputs) operation.outputs.add(list);
  {
    const MutexLock lock(mutex_);
    if (!traced_) {
      const std::string& torchs = getGroupUid();
      traced_ =
          std::make_shared<TracedGroup>(TracedGroup{.name = torchs.empty() ? within_.state->name() : torchs,
                                                    .description = getGroupDesc(),
                                                    .ranks = within_.names->torchs(),
                                                    .rank = getRank()});
    }
    operation.group = traced_;
    operation.timeout_ms = timeout_of(named).count();
    operation.sequence = named.peer ? ++messages_ : ++collectives_;
  }
  traced.emplace(named.peer ? Trace::of_messages() : Trace::of_collectives(), std::move(operation));
}

void ProcessGroupLockstep::take_back(const Named& named, std::optional<Traced>& traced) {
  if (!traced) return;
  traced->forget();
  const MutexLock lock(mutex_);
  --(named.peer ? messages_ : collectives_);
}

void ProcessGroupLockstep::refuse_other_devices(const Named& named) const {
  const auto refuse = [&](c10::ArrayRef<Tensor> tensors) {
    for (const Tensor& tensor : tensors) {
      if (!tensor.defined() || tensor.is_cpu()) continue;
      throw_torch(Status::invalid(
          cat("rank ", within_.names->own(), ": ", named.name, ": a tensor is on ", tensor.device().str(),
              ", and the backend lockstep takes CPU tensors: move it there by .cpu(), or give that device a "
              "backend of its own, as init_process_group(\"cpu:lockstep,cuda:nccl\") does.")));
    }
  };
  refuse(named.inputs);
  refuse(named.output);
  for (const Tensors& list : named.outputs) refuse(list);
}

void ProcessGroupLockstep::refuse_in_forked_child(const Named& named) const {
  if (within_.state->is_of_this_process()) return;
  translated(*within_.names, [&] { (void)within_.state->any_backend(named.name); });
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::issue(const Named& named, Begin begin) {
  refuse_in_forked_child(named);
  refuse_other_devices(named);
  const auto noted = [&](std::optional<Traced>& traced) {
    note(named, traced);
    try {
      return begin();
    } catch (const tensor::InvalidArgument&) {
      take_back(named, traced);
      throw;
    }
  };
  if (named.async_op || at::hasCallbacks() || is_coalescing()) return start(named, noted);
  std::optional<Traced> traced;
  run_interruptibly(within_, [&] { (void)noted(traced); });
  if (traced) traced->succeeded();
  return nullptr;
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::start(
    const Named& named, c10::function_ref<tensor::WorkHandle(std::optional<Traced>&)> begin) {
  WorkPlan plan{.type = named.type, .is_message = named.peer.has_value(), .group = within_, .pool = pool_};
  {
    const MutexLock lock(mutex_);
    plan.timeout = timeout_of(named);
  }
  if (!named.output.empty()) plan.outputs.push_back(named.output.vec());
  for (const Tensors& list : named.outputs) plan.outputs.push_back(list);
  if (at::hasCallbacks()) {
    plan.title = cat(profiling_name_, ":", named.name);
    plan.inputs = named.inputs.vec();
  }
  const auto work = LockstepWork::start(std::move(plan), begin);
  if (!named.peer) {
    const MutexLock lock(mutex_);
    last_.emplace(work);
  }
  collect(work);
  return work;
}

const at::Tensor& ProcessGroupLockstep::only(const char* call, const Tensors& tensors) const {
  if (tensors.size() == 1) return tensors.front();
  throw_torch(Status::invalid(cat("rank ", within_.names->own(), ": ", call,
                                  " takes one tensor, and was given ", tensors.size(), ".")));
}

const std::vector<at::Tensor>& ProcessGroupLockstep::only(const char* call, const TensorLists& lists) const {
  if (lists.size() == 1) return lists.front();
  throw_torch(Status::invalid(cat("rank ", within_.names->own(), ": ", call,
                                  " takes one list of tensors, and was given ", lists.size(), ".")));
}

}  // namespace lockstep::python
