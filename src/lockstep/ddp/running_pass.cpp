#include "lockstep/ddp/running_pass.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "lockstep/ddp/exception_watch.h"
#include "lockstep/ddp/failure.h"

namespace lockstep::ddp {
namespace {

// Whether the task of autograd that runs accumulates any of these gradients: torch::autograd::grad() does
// not, and backward() with inputs does for those alone.
bool accumulates_any(const Accumulators& gradients) {
  const auto* const asked_for = torch::autograd::get_current_graph_task_exec_info();
  if (asked_for == nullptr || asked_for->empty()) return true;
  return std::any_of(asked_for->begin(), asked_for->end(),
                     [&](const auto& each) { return each.second.needed_ && gradients.contains(each.first); });
}

constexpr const char* kEndedByException = "an exception ended its backward pass";

// At the end of a task that ends a pass. If it came by a gradient alone, and runs inside a node of another
// task, gradients of that one may follow.
void check_is_whole(const BackwardPass& pass, int task) {
  if (pass.was_entered_by_outputs(task) || !torch::autograd::get_current_node()) return;
  throw_reduction_error(
      "backward",
      "DistributedDataParallel: the last gradient came from a backward inside another, as a reentrant "
      "checkpoint runs one, and the outer one was not seen, because it has not come through what forward "
      "returned. So nobody knows whether more gradients follow. Return every tensor that the loss is made of "
      "from forward, as a type that is looked into.");
}

}  // namespace

// What a forward leaves to the hooks of its outputs. Its parts refer to the owner, its group does not.
struct RunningPass::Forward {
  PassParts parts;
  std::shared_ptr<const Accumulators> accumulators;
  Expectation expected;
  tensor::ProcessGroup group;
  Mode mode;
  std::uint64_t era;
  mutable std::atomic<int> last_task = -1;  // that has come to its outputs
};

void RunningPass::begin(const PassParts& parts, Expectation expected, std::span<const at::Tensor> outputs,
                        Mode mode) {
  std::shared_ptr<const Forward> forward;
  {
    const MutexLock lock(mutex_);
    is_alone_ = mode == Mode::kAccumulating;
    forward = std::make_shared<const Forward>(parts, parts.gradients.accumulators(), std::move(expected),
                                              parts.group, mode, era_);
    std::erase_if(searched_, [](const auto& each) { return each.expired(); });
    if (mode != Mode::kAccumulating && parts.used.searches()) searched_.emplace_back(forward);
  }
  std::shared_ptr<UnwindWatch> watch;  // shared by the hooks
  if (mode != Mode::kEvaluation) {
    watch = std::make_shared<UnwindWatch>([weak = self_, forward] {
      if (const auto self = weak.lock()) self->unwound(*forward);
    });
  }
  bool has_hooks = false;
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || output.is_leaf()) continue;  // a leaf is somebody's, and would keep the hook
    has_hooks = true;
    output.register_hook([weak = self_, watch, forward](const at::Tensor&) {
      const auto self = weak.lock();
      self ? self->backward_reached(forward) : owner_is_gone(*forward);
    });
  }
  if (mode == Mode::kAccumulating || (mode == Mode::kEvaluation && has_hooks)) return;
  events_.beginning();
  Current next = pass_of(forward, expected_of(*forward));
  const MutexLock lock(mutex_);
  std::swap(current_, next);  // what was there goes with no lock held
}

// A search finds what one forward uses, and a pass may be of all that live.
Expectation RunningPass::expected_of(const Forward& forward) const {
  Expectation expected = forward.expected;
  const MutexLock lock(mutex_);
  for (const std::weak_ptr<const Forward>& each : searched_) {
    if (const auto living = each.lock()) expected.include(living->expected);
  }
  return expected;
}

RunningPass::Current RunningPass::pass_of(const std::shared_ptr<const Forward>& forward,
                                          const Expectation& expected) {
  return {forward, std::make_shared<BackwardPass>(forward->parts, expected)};
}

void RunningPass::backward_reached(const std::shared_ptr<const Forward>& forward) {
  if (!accumulates_any(*forward->accumulators) || is_forgotten(*forward)) return;
  if (forward->mode == Mode::kAccumulating) {
    watch_task(forward);
    enter(Entry::kOutputs);
    return;
  }
  make_pass_for(forward);
  enter(Entry::kOutputs);
  take_remembered();
}

bool RunningPass::is_forgotten(const Forward& forward) const {
  const MutexLock lock(mutex_);
  return forward.era != era_;
}

void RunningPass::make_pass_for(const std::shared_ptr<const Forward>& forward) {
  for (;;) {
    const Current now = current();
    if (now.pass && (now.pass->entered() || !forward->parts.used.searches())) return;
    if (!now.pass) about_to_begin(forward->group);
    Current next = pass_of(now.pass ? now.forward : forward, expected_of(*forward));
    const MutexLock lock(mutex_);
    if (current_.pass != now.pass) continue;  // another task was faster
    std::swap(current_, next);
    return;
  }
}

void RunningPass::about_to_begin(const tensor::ProcessGroup& group) const {
  try {
    events_.beginning();
  } catch (...) {
    end_group(group, "backward", text_of_exception());
    throw;
  }
}

void RunningPass::remember(std::size_t parameter) {
  constexpr std::size_t kTasks = 64;  // else those that met an exception would stay for good
  const int task = torch::autograd::get_current_graph_task_id();
  {
    const MutexLock lock(mutex_);
    std::vector<std::size_t>& parameters = early_[task];
    parameters.push_back(parameter);
    if (parameters.size() > 1) return;
    if (early_.size() > kTasks) early_.erase(early_.begin());
  }
  torch::autograd::Engine::get_default_engine().queue_callback([weak = self_, task] {
    if (const auto self = weak.lock()) self->forget(task);
  });
}

std::vector<std::size_t> RunningPass::remembered_from(int task) {
  std::vector<std::size_t> all;
  const MutexLock lock(mutex_);
  const auto first = early_.lower_bound(task);
  for (auto it = first; it != early_.end(); ++it) all.insert(all.end(), it->second.begin(), it->second.end());
  early_.erase(first, early_.end());
  return all;
}

void RunningPass::take_remembered() {
  const Current now = current();
  if (!now.pass) return;
  or_end(now, [&] {
    for (const std::size_t parameter : remembered_from(torch::autograd::get_current_graph_task_id()))
      now.pass->ready(parameter);
  });
}

void RunningPass::forget(int task) {
  if (torch::autograd::get_current_node()) return;  // it ran inside another, which may come to outputs yet
  const std::vector<std::size_t> parameters = remembered_from(task);
  {
    const MutexLock lock(mutex_);
    if (parameters.empty() || is_alone_ || astray_was_told_) return;
  }
  const bool told = events_.astray(parameters);
  const MutexLock lock(mutex_);
  astray_was_told_ = astray_was_told_ || told;
}

void RunningPass::stay_alone() {
  const MutexLock lock(mutex_);
  is_alone_ = true;
}

void RunningPass::owner_is_gone(const Forward& forward) {
  if (forward.mode != Mode::kTraining || !accumulates_any(*forward.accumulators)) return;
  const std::string what =
      "DistributedDataParallel: the model was destroyed between forward and backward, so nobody would reduce "
      "the gradients; keep it until backward is over.";
  end_group(forward.group, "backward", what);
  throw_reduction_error("backward", what);
}

void RunningPass::watch_task(const std::shared_ptr<const Forward>& forward) const {
  const int task = torch::autograd::get_current_graph_task_id();
  if (forward->last_task.exchange(task) == task) return;
  auto watch = std::make_shared<TaskWatch>([weak = self_, forward] {
    if (weak.lock()) end_group(forward->group, "backward", kEndedByException);
  });
  torch::autograd::Engine::get_default_engine().queue_callback([watch] { watch->reach_end(); });
}

RunningPass::Current RunningPass::current() const {
  const MutexLock lock(mutex_);
  return current_;
}

void RunningPass::give_up() {
  Current old;  // goes with no lock held: it may own tensors, a hook and what the hook keeps
  const MutexLock lock(mutex_);
  std::swap(current_, old);
}

void RunningPass::forget_forwards() {
  give_up();
  const MutexLock lock(mutex_);
  ++era_;
  searched_.clear();
  early_.clear();
}

bool RunningPass::has_ever_begun() const {
  const MutexLock lock(mutex_);
  return begun_;
}

bool RunningPass::runs() const {
  const std::shared_ptr<BackwardPass> pass = current().pass;
  return pass && pass->running();
}

std::shared_ptr<BackwardPass> RunningPass::take_unfinished() {
  std::shared_ptr<BackwardPass> last = current().pass;
  if (!last || !last->entered()) return nullptr;
  give_up();
  return last;
}

void RunningPass::unwound(const Forward& forward) {
  const Current now = current();
  if (forward.mode == Mode::kAccumulating) {
    if (forward.last_task >= 0) return;
  } else if (now.forward.get() != &forward || now.pass->started()) {
    return;
  }
  end_group(forward.group, "forward",
            "an exception between forward and backward, after which the outputs are gone");
  if (forward.mode != Mode::kAccumulating) drop(now.pass);
}

void RunningPass::accumulated(std::size_t parameter) {
  const Current now = current();
  if (!now.pass) return remember(parameter);
  enter(Entry::kGradient);
  or_end(now, [&] { now.pass->ready(parameter); });
}

void RunningPass::or_end(const Current& now, const std::function<void()>& step) {
  try {
    step();
  } catch (...) {
    end_group(now.forward->group, "backward", text_of_exception());
    drop(now.pass);
    throw;
  }
}

void RunningPass::drop(const std::shared_ptr<BackwardPass>& pass) {
  const MutexLock lock(mutex_);
  if (current_.pass == pass) current_ = {};
}

void RunningPass::enter(Entry by) {
  Current now;
  {
    const MutexLock lock(mutex_);
    if (!current_.pass) return;
    begun_ = true;
    now = current_;
  }
  const int task = torch::autograd::get_current_graph_task_id();
  bool entered = false;
  or_end(now, [&] { entered = now.pass->enter(task, by); });
  if (!entered) return;
  auto watch = std::make_shared<TaskWatch>([weak = self_, now] {
    const auto self = weak.lock();
    if (!self) return;
    end_group(now.forward->group, "backward", kEndedByException);
    self->drop(now.pass);
  });
  torch::autograd::Engine::get_default_engine().queue_callback([weak = self_, watch, now, task] {
    watch->reach_end();
    if (const auto self = weak.lock()) self->leave(now, task);
  });
}

void RunningPass::leave(const Current& now, int task) {
  if (current().pass != now.pass) return;
  or_end(now, [&] {
    if (!now.pass->leave()) return;
    check_is_whole(*now.pass, task);
    now.pass->finish();
    events_.finished(now.pass->order());
    drop(now.pass);
  });
}

}  // namespace lockstep::ddp
