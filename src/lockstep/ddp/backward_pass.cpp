#include "lockstep/ddp/backward_pass.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/sparse_coo_tensor.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/ddp/failure.h"
#include "lockstep/tensor/groups.h"
#include "lockstep/tensor/purpose.h"

namespace lockstep::ddp {
namespace {

std::vector<std::size_t> sizes_of(const BucketPlan& plan) {
  std::vector<std::size_t> sizes;
  sizes.reserve(plan.buckets.size());
  for (const std::vector<std::size_t>& bucket : plan.buckets) sizes.push_back(bucket.size());
  return sizes;
}

}  // namespace

BackwardPass::BackwardPass(const PassParts& parts, Expectation expected)
    : parts_(parts),
      expected_(std::move(expected)),
      launches_(sizes_of(parts.gradients.plan())),
      left_(expected_.times),
      works_(parts.gradients.buckets()),
      skipped_(parts.gradients.buckets(), false),
      with_graph_(parts.gradients.size()),
      deferred_(parts.gradients.size()) {}

void BackwardPass::refuse(const std::string& what) const {
  throw_reduction_error("backward", cat("DistributedDataParallel: ", what));
}

void BackwardPass::tell(PassPhase phase, std::size_t index, Duration running, Duration waiting) const {
  if (!parts_.observer) return;
  PassEvent event{
      .phase = phase, .at = Clock::steady().now(), .index = index, .running = running, .waiting = waiting};
  if (phase != PassPhase::kReady && index < works_.size()) {
    const at::Tensor& buffer = parts_.gradients.bucket(index).buffer();
    if (buffer.defined() && !buffer.is_sparse()) event.bytes = Bytes{buffer.nbytes()};
  }
  parts_.observer(event);
}

bool BackwardPass::enter(int task, Entry by) {
  const PassTasks::Came came = tasks_.enter(task, by);
  if (came != PassTasks::Came::kFirst) return came != PassTasks::Came::kAgain;
  std::vector<Parameter> unused;
  {
    const MutexLock lock(mutex_);
    for (Parameter i = 0; i < left_.size(); ++i) {
      if (left_[i] == 0) unused.push_back(i);
    }
  }
  tell(PassPhase::kBackward, works_.size());
  for (const Parameter parameter : unused) take({parameter, Use::kUnused});
  return true;
}

bool BackwardPass::leave() {
  if (!tasks_.leave()) return false;
  if (!expected_.ends_with_backward && !launches_.is_over()) return false;
  finishing_ = true;
  return true;
}

void BackwardPass::ready(Parameter parameter) {
  parts_.used.accumulated_in_pass(parameter);
  const auto delay_ends_with = parts_.gradients.delay_ends_with();
  bool unexpected = false;
  {
    const MutexLock lock(mutex_);
    int& left = left_[parameter];
    unexpected = left == 0;
    if (!unexpected) {
      order_.push_back(parameter);
      if (parts_.gradients.planned_of(parameter).delayed && parameter != delay_ends_with) return;
      if (--left > 0) return;
    }
  }
  if (unexpected) {
    const std::string name = base::quoted(parts_.gradients.name(parameter));
    if (parts_.gradients.planned_of(parameter).delayed) {
      refuse(
          cat("the gradient of the parameter ", name,
              " came after that of param_to_hook_all_reduce, with which the delayed ones were reduced; name "
              "there the parameter whose gradient comes last."));
    }
    refuse(expected_.times[parameter] == 0
               ? cat("the parameter ", name,
                     " got a gradient, but the outputs of forward do not depend on it "
                     "(find_unused_parameters), or it took no part in the first backward pass "
                     "(static_graph). Return every tensor that the loss is made of from forward, and set "
                     "static_graph only for a graph that never changes.")
               : cat("the gradient of the parameter ", name,
                     " was accumulated again after it was taken to be final. That happens when a parameter "
                     "is used in several parts, or several forwards, whose checkpoints are reentrant, or "
                     "outside forward. With static_graph = true it is known after the first pass how often, "
                     "and every other must do the same; checkpoints that are not reentrant need neither."));
  }
  tell(PassPhase::kReady, parameter);
  take({parameter, Use::kUsed});
  if (parameter == delay_ends_with) take_delayed(parameter);
}

void BackwardPass::take_delayed(Parameter last) {
  for (Parameter i = 0; i < parts_.gradients.size(); ++i) {
    if (i == last || !parts_.gradients.planned_of(i).delayed) continue;
    {
      const MutexLock lock(mutex_);
      left_[i] = 0;
    }
    tell(PassPhase::kReady, i);
    take({i, Use::kUsed});
  }
}

void BackwardPass::take_rest() {
  std::vector<Taken> rest;
  {
    const MutexLock lock(mutex_);
    for (Parameter i = 0; i < left_.size(); ++i) {
      const int left = std::exchange(left_[i], 0);
      if (left > 0) rest.push_back({i, left == expected_.times[i] ? Use::kUnused : Use::kUsed});
    }
  }
  for (const Taken taken : rest) take(taken);
}

void BackwardPass::take(Taken taken) {
  const at::NoGradGuard no_grad;
  const Parameter parameter = taken.parameter;
  const auto [index, place] = parts_.gradients.place(parameter);
  GradBucket& bucket = parts_.gradients.bucket(index);
  if (bucket.sparse()) {
    take_sparse(parameter, bucket);
    return count_down(index);
  }
  tensor::GradientSlot& slot = parts_.gradients.slot(parameter);
  const at::Tensor gradient = slot.gradient();
  const at::Tensor& view = bucket.view(place);
  if (!gradient.defined()) {
    view.zero_();
    return count_down(index);
  }
  if (gradient.layout() != at::kStrided) {
    refuse(cat("the gradient of ", base::quoted(parts_.gradients.name(parameter)),
               " is sparse, which was not expected; name the parameter in the option sparse_parameters."));
  }
  if (gradient.sizes() != view.sizes() || gradient.scalar_type() != view.scalar_type()) {
    refuse(cat("the gradient of ", base::quoted(parts_.gradients.name(parameter)), " has ", gradient.numel(),
               " elements of type ", c10::toString(gradient.scalar_type()), ", but ", view.numel(),
               " of type ", c10::toString(view.scalar_type()),
               " were agreed on. Wrap the module again after its parameters have changed."));
  }
  const bool held = bucket.holds(place, gradient);
  const bool shared = held && !slot.may_alias();
  if (shared) slot.set_gradient(gradient.clone());  // others read it while the bucket is reduced
  if (taken.use == Use::kUnused) {
    if (held && !shared) as_they_were_.emplace(parameter, gradient.clone());
    if (!held) parts_.gradients.fill(parameter, gradient);
  } else if (gradient.requires_grad()) {
    with_graph_[parameter] = gradient;
    if (!held) parts_.gradients.fill(parameter, gradient);
  } else if (!held && parts_.copying == Copying::kWithItsBucket) {
    deferred_[parameter] = gradient;
  } else {
    if (!held) parts_.gradients.fill(parameter, gradient);
    point_to_bucket(parameter);
  }
  count_down(index);
}

void BackwardPass::point_to_bucket(Parameter parameter) {
  const auto [index, place] = parts_.gradients.place(parameter);
  tensor::GradientSlot& slot = parts_.gradients.slot(parameter);
  if (parts_.handing == Handing::kAlias && slot.may_alias())
    slot.set_gradient(parts_.gradients.bucket(index).view(place));
}

void BackwardPass::copy_deferred(std::size_t bucket) {
  for (const Parameter parameter : parts_.gradients.plan().buckets[bucket]) {
    const at::Tensor gradient = std::exchange(deferred_[parameter], {});
    if (!gradient.defined()) continue;
    parts_.gradients.fill(parameter, gradient);
    point_to_bucket(parameter);
  }
}

void BackwardPass::take_sparse(Parameter parameter, GradBucket& bucket) {
  tensor::GradientSlot& slot = parts_.gradients.slot(parameter);
  const at::Tensor gradient = slot.gradient();
  const at::Tensor local = slot.local();
  if (!gradient.defined()) {
    bucket.set_buffer(
        at::sparse_coo_tensor(local.sizes(), local.options().requires_grad(false).layout(at::kSparse)));
    return;
  }
  if (!gradient.is_sparse()) {
    refuse(
        cat("the gradient of ", base::quoted(parts_.gradients.name(parameter)),
            parts_.gradients.is_sparse_by_module(parameter)
                ? " is dense, but its module is an embedding with sparse = true. A parameter that is used "
                  "elsewhere too, as a tied one is, gets a dense gradient: make the embedding with sparse = "
                  "false."
                : " is dense, but the option sparse_parameters names it. Leave it out there, or use it only "
                  "as an embedding with sparse = true does."));
  }
  bucket.set_buffer(slot.may_alias() ? gradient.variable_data() : gradient.clone());
}

void BackwardPass::count_down(std::size_t bucket) {
  launches_.count_down(bucket, [this](std::size_t next) { launch(next); });
}

bool BackwardPass::may_skip(std::size_t bucket) const {
  if (!parts_.skip_unused) return false;
  const std::vector<Parameter>& parameters = parts_.gradients.plan().buckets[bucket];
  return std::all_of(parameters.begin(), parameters.end(),
                     [&](Parameter i) { return !parts_.used.used_here(i); });
}

void BackwardPass::check_skipped(std::size_t bucket) const {
  if (!skipped_[bucket]) return;
  for (const Parameter parameter : parts_.gradients.plan().buckets[bucket]) {
    if (!parts_.used.used_anywhere(parameter)) continue;
    refuse(cat("the parameter ", base::quoted(parts_.gradients.name(parameter)),
               " was used by another rank, but not by this one, which has left out its bucket "
               "(skip_all_reduce_unused_params). With that option all ranks must use the same parameters; "
               "leave it out where they do not."));
  }
}

void BackwardPass::launch(std::size_t bucket) {
  const at::NoGradGuard no_grad;
  copy_deferred(bucket);
  skipped_[bucket] = may_skip(bucket);
  if (!skipped_[bucket]) {
    tell(PassPhase::kLaunched, bucket);
    // Ranks that leave out different buckets hear it in words of its own, when all know what was used.
    const std::uint64_t purpose =
        parts_.skip_unused ? parts_.purpose.of_bucket(0, {})
                           : parts_.purpose.of_bucket(bucket, parts_.gradients.plan().buckets[bucket]);
    parts_.gradients.bucket(bucket).set_group(parts_.group, purpose);
    works_[bucket] = parts_.hook->reduce(parts_.gradients.bucket(bucket));
  }
  if (bucket + 1 < works_.size()) return;
  map_ = parts_.used.local_map();
  if (!map_.defined()) return;
  map_work_ = tensor::all_reduce_for(parts_.purpose.of_used_parameters(), map_,
                                     {.op = ReduceOp::kMax, .group = parts_.group, .async_op = true});
}

void BackwardPass::settle(std::size_t bucket) {
  const base::TimePoint from = Clock::steady().now();
  HookWork& work = works_[bucket];
  work.work.wait();
  const Duration waiting = Clock::steady().now() - from;
  tell(PassPhase::kWaited, bucket);
  if (work.then) work.then();
  GradBucket& own = parts_.gradients.bucket(bucket);
  if (const std::string wrong = own.settle(); !wrong.empty())
    refuse(cat("the communication hook ", parts_.hook->name(), ", bucket ", bucket, " (",
               parts_.gradients.names_text(parts_.gradients.plan().buckets[bucket]), "): ", wrong,
               ". Give set_buffer() a tensor of the bucket's own type and size."));
  tell(PassPhase::kDone, bucket, work.work.duration(), waiting);
}

void BackwardPass::finish() {
  const at::NoGradGuard no_grad;
  take_rest();
  for (std::size_t b = 0; b < works_.size(); ++b) {
    if (!skipped_[b]) settle(b);
  }
  map_work_.wait();
  parts_.used.end_pass(map_);
  for (std::size_t b = 0; b < works_.size(); ++b) check_skipped(b);
  for (Parameter parameter = 0; parameter < parts_.gradients.size(); ++parameter) hand_back(parameter);
  for (std::size_t b = 0; b < works_.size(); ++b) parts_.gradients.bucket(b).clear();
  tell(PassPhase::kFinished, works_.size());
}

void BackwardPass::hand_back(Parameter parameter) {
  const auto [index, place] = parts_.gradients.place(parameter);
  GradBucket& bucket = parts_.gradients.bucket(index);
  tensor::GradientSlot& slot = parts_.gradients.slot(parameter);
  if (!parts_.used.used_anywhere(parameter) || skipped_[index]) return restore(parameter);
  if (bucket.sparse()) return slot.set_gradient(bucket.buffer());
  const at::Tensor& view = bucket.view(place);
  if (const at::Tensor& graph = with_graph_[parameter]; graph.defined()) {
    graph.variable_data().copy_(view);
    return;
  }
  if (parts_.handing == Handing::kAlias && slot.may_alias()) return slot.set_gradient(view);
  const at::Tensor gradient = slot.gradient();
  if (!gradient.defined() || at::has_internal_overlap(gradient) == at::MemOverlap::Yes)
    return slot.set_gradient(view.clone());
  gradient.variable_data().copy_(view);
  slot.set_gradient(gradient);
}

void BackwardPass::restore(Parameter parameter) {
  const auto found = as_they_were_.find(parameter);
  if (found == as_they_were_.end()) return;
  const auto [index, place] = parts_.gradients.place(parameter);
  parts_.gradients.bucket(index).view(place).copy_(found->second);
}

bool BackwardPass::started() const {
  const MutexLock lock(mutex_);
  return !order_.empty() || launches_.has_begun();
}

std::vector<std::size_t> BackwardPass::missing() const {
  const MutexLock lock(mutex_);
  std::vector<Parameter> missing;
  for (Parameter i = 0; i < left_.size(); ++i) {
    if (left_[i] > 0) missing.push_back(i);
  }
  return missing;
}

std::vector<std::size_t> BackwardPass::order() const {
  const MutexLock lock(mutex_);
  // One that was accumulated several times is final at the last of them; what was not used comes last.
  std::vector<Parameter> final;
  std::vector<bool> seen(left_.size(), false);
  for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
    if (!seen[*it]) final.push_back(*it);
    seen[*it] = true;
  }
  std::reverse(final.begin(), final.end());
  for (Parameter i = 0; i < seen.size(); ++i) {
    if (!seen[i]) final.push_back(i);
  }
  return final;
}

}  // namespace lockstep::ddp
