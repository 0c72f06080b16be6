#include "lockstep/ddp/running_pass.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

#include "lockstep/ddp/exception_watch.h"
#include "lockstep/ddp/failure.h"

namespace lockstep::ddp {
namespace {

// Whether autograd computes the gradients of some tensors alone, as torch::autograd::grad() does.
bool is_for_some_tensors() {
  const auto* const asked_for = torch::autograd::get_current_graph_task_exec_info();
  return asked_for != nullptr && !asked_for->empty();
}

}  // namespace

void RunningPass::begin(std::shared_ptr<BackwardPass> pass, const tensor::ProcessGroup& group,
                        std::span<const at::Tensor> outputs, Mode mode) {
  const std::weak_ptr<BackwardPass> made = pass;
  std::shared_ptr<UnwindWatch> watch;  // shared by the hooks
  if (mode == Mode::kTraining) {
    watch = std::make_shared<UnwindWatch>([weak = self_, made] {
      if (const auto self = weak.lock()) self->unwound(made);
    });
  }
  bool has_hooks = false;
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || output.is_leaf()) continue;  // a leaf is somebody's, and would keep the hook
    has_hooks = true;
    output.register_hook([weak = self_, watch, made](const at::Tensor&) {
      if (const auto self = weak.lock()) self->backward_reached(made);
    });
  }
  const MutexLock lock(mutex_);
  evaluated_ = {};
  (mode == Mode::kEvaluation && has_hooks ? evaluated_ : current_) = Current{std::move(pass), group};
}

void RunningPass::backward_reached(const std::weak_ptr<BackwardPass>& pass) {
  if (is_for_some_tensors()) return;
  const std::shared_ptr<BackwardPass> made = pass.lock();
  {
    const MutexLock lock(mutex_);
    if (made && evaluated_.pass == made) current_ = std::exchange(evaluated_, {});
  }
  enter();
}

RunningPass::Current RunningPass::current() const {
  const MutexLock lock(mutex_);
  return current_;
}

void RunningPass::give_up() {
  const MutexLock lock(mutex_);
  current_ = {};
  evaluated_ = {};
}

bool RunningPass::has_ever_begun() const {
  const MutexLock lock(mutex_);
  return begun_;
}

std::shared_ptr<BackwardPass> RunningPass::take_unfinished() {
  const std::shared_ptr<BackwardPass> last = current().pass;
  if (!last || !last->started()) return nullptr;
  give_up();
  return last;
}

void RunningPass::unwound(const std::weak_ptr<BackwardPass>& pass) {
  const Current now = current();
  if (!now.pass || now.pass != pass.lock() || now.pass->started()) return;
  end_group(now.group, "forward",
            "an exception between forward and backward, after which the outputs are gone");
  drop(now.pass);
}

void RunningPass::accumulated(std::size_t parameter) {
  const Current now = current();
  if (!now.pass) return;
  enter();
  or_end(now, [&] { now.pass->ready(parameter); });
}

void RunningPass::or_end(const Current& now, const std::function<void()>& step) {
  try {
    step();
  } catch (...) {
    end_group(now.group, "backward", text_of_exception());
    drop(now.pass);
    throw;
  }
}

void RunningPass::drop(const std::shared_ptr<BackwardPass>& pass) {
  const MutexLock lock(mutex_);
  if (current_.pass == pass) current_ = {};
}

void RunningPass::enter() {
  Current now;
  {
    const MutexLock lock(mutex_);
    if (!current_.pass) return;
    begun_ = true;
    now = current_;
  }
  const int task = torch::autograd::get_current_graph_task_id();
  bool entered = false;
  or_end(now, [&] { entered = now.pass->enter(task); });
  if (!entered) return;
  auto watch = std::make_shared<TaskWatch>([weak = self_, now] {
    const auto self = weak.lock();
    if (!self) return;
    end_group(now.group, "backward", "an exception ended its backward pass");
    self->drop(now.pass);
  });
  torch::autograd::Engine::get_default_engine().queue_callback([weak = self_, watch, now, task] {
    watch->reach_end();
    if (const auto self = weak.lock()) self->leave(now, task);
  });
}

void RunningPass::leave(const Current& now, int task) {
  if (current().pass != now.pass) return;
  bool finished = false;
  or_end(now, [&] {
    finished = now.pass->leave(task);
    if (!finished) return;
    now.pass->finish();
    finished_(now.pass->order());
  });
  if (finished) drop(now.pass);
}

}  // namespace lockstep::ddp
