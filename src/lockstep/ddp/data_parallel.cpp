#include "lockstep/ddp/data_parallel.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/ddp/parameters.h"
#include "lockstep/ddp/reduction_error.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/groups.h"

namespace lockstep::ddp {
namespace {

constexpr Logger kLog("ddp");

std::vector<Gradient> gradients_of(const NamedTensors& parameters, const DataParallelOptions& options,
                                   const std::vector<std::string>& sparse) {
  const auto named = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  std::vector<Gradient> gradients;
  for (const auto& [name, parameter] : parameters) {
    Gradient gradient{
        .name = name,
        .slot = options.gradient_slot ? options.gradient_slot(parameter) : tensor::own_gradient(parameter),
        .planned = {}};
    const at::Tensor local = gradient.slot->local();
    gradient.planned = {.elements = static_cast<std::size_t>(local.numel()),
                        .dtype = local.scalar_type(),
                        .device = local.device(),
                        .sparse = named(options.sparse_parameters, name) || named(sparse, name)};
    gradients.push_back(std::move(gradient));
  }
  return gradients;
}

std::vector<at::Tensor> tensors_of(const NamedTensors& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& item : named) tensors.push_back(item.second);
  return tensors;
}

// Without the stack that torch's errors carry, and without who reports it.
std::string text_of(const std::exception& error) {
  if (const auto* const own = dynamic_cast<const tensor::ErrorFields*>(&error))
    return std::string(own->message());
  const auto* const torch = dynamic_cast<const c10::Error*>(&error);
  return torch != nullptr ? torch->what_without_backtrace() : error.what();
}

// Lives as long as a task of autograd. One that goes before the task's end was reached has met an exception.
class TaskWatch {
 public:
  explicit TaskWatch(std::function<void()> on_exception) : on_exception_(std::move(on_exception)) {}
  ~TaskWatch() {
    if (!reached_end_) on_exception_();
  }
  TaskWatch(const TaskWatch&) = delete;
  TaskWatch& operator=(const TaskWatch&) = delete;
  void reach_end() { reached_end_ = true; }

 private:
  const std::function<void()> on_exception_;
  bool reached_end_ = false;
};

}  // namespace

std::shared_ptr<DataParallel> DataParallel::make(std::unique_ptr<ModuleView> module,
                                                 const DataParallelOptions& options) {
  check(options);
  NamedTensors parameters = without_repeats(module->parameters(), options.parameters_and_buffers_to_ignore);
  if (options.init_sync) check_same_on_all_ranks(parameters, settings_text(options), options.process_group);
  if (options.init_sync) broadcast_from_first(tensors_of(parameters), options.process_group);
  const auto frozen = [](const auto& named) { return !named.second.requires_grad(); };
  parameters.erase(std::remove_if(parameters.begin(), parameters.end(), frozen), parameters.end());
  if (parameters.empty())
    refuse(
        "the module has no parameter that needs a gradient, so there is nothing to reduce; use the module "
        "itself.");
  std::shared_ptr<DataParallel> made(new DataParallel(std::move(module), options, std::move(parameters)));
  made->start();
  return made;
}

DataParallel::DataParallel(std::unique_ptr<ModuleView> module, const DataParallelOptions& options,
                           NamedTensors parameters)
    : module_(std::move(module)),
      options_(options),
      parameters_(std::move(parameters)),
      group_(options.process_group),
      limits_(limits_of(options)),
      gradients_(gradients_of(parameters_, options, module_->sparse_parameters())),
      hook_(all_reduce_hook(group_)) {
  if (options.static_graph) {
    used_ = std::make_unique<RecordFirstIteration>(gradients_.size());
  } else if (options.find_unused_parameters) {
    std::vector<const torch::autograd::Node*> accumulators;
    for (std::size_t i = 0; i < gradients_.size(); ++i)
      accumulators.push_back(gradients_.slot(i).accumulator());
    used_ = std::make_unique<SearchGraph>(accumulators);
  } else {
    used_ = std::make_unique<AllUsed>(gradients_.size());
  }
}

void DataParallel::start() {
  const bool with_buffers =
      options_.forward_sync_buffers.has_value() || options_.broadcast_buffers.value_or(true);
  if (options_.init_sync && with_buffers) {
    broadcast_from_first(
        tensors_of(without_repeats(module_->buffers(), options_.parameters_and_buffers_to_ignore)), group_);
  }
  if (options_.forward_sync_buffers && options_.broadcast_buffers)
    kLog.warn("forward_sync_buffers and broadcast_buffers are both given; broadcast_buffers is ignored.");
  if (group_.size() > 1) attach();
  std::size_t bytes = 0;
  for (const PlannedGradient& gradient : gradients_.planned()) bytes += gradient.bytes();
  kLog.info(cat("DDP initialized with ", module_->type_name(), ": ", gradients_.size(), " parameters, ",
                Bytes{bytes}, ", ", gradients_.buckets(), " buckets, world of ", group_.size(), ", ",
                settings_text(options_)));
}

DataParallel::~DataParallel() = default;

void DataParallel::attach() {
  // Until a pass has been seen there is one bucket, as in torch, for nobody knows the order yet; unless
  // unused parameters are looked for, or every bucket's size is given: then the plan is made once and for
  // all.
  const bool rebuilds = !options_.find_unused_parameters;
  const BucketLimits unlimited = {SIZE_MAX};
  const bool first_is_one = rebuilds && options_.bucket_cap_mb_list.empty();
  gradients_.lay_out(plan_before_first_pass(gradients_.planned(), first_is_one ? unlimited : limits_));
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    gradients_.slot(i).when_accumulated([weak = weak_from_this(), i] {
      if (const auto self = weak.lock()) self->accumulated(i);
    });
  }
  attached_ = true;
}

void DataParallel::remove_autograd_hooks() {
  std::vector<Gradient> none;
  const MutexLock lock(mutex_);
  pass_.reset();
  gradients_ = Gradients(std::move(none));
  attached_ = false;
}

void DataParallel::register_comm_hook(CommHookPtr hook) {
  if (!hook) refuse("register_comm_hook: the hook is null.");
  if (!own_hook_)
    refuse(cat("register_comm_hook: the hook ", hook_->name(), " was registered before; a model has one."));
  if (gradients_.size() == 0)
    refuse("register_comm_hook: the autograd hooks were removed; wrap the module again.");
  if (begun_) refuse("register_comm_hook: a backward pass has been; register a hook before the first.");
  hook_ = std::move(hook);
  own_hook_ = false;
  if (!attached_) attach();
}

void DataParallel::register_buffer_comm_hook(BufferHook hook, BufferHookLocation where) {
  if (!hook) refuse("register_buffer_comm_hook: the hook is null.");
  buffer_hook_ = std::move(hook);
  buffer_hook_location_ = where;
}

void DataParallel::update_process_group(const tensor::ProcessGroup& group) {
  if (!group.is_member()) refuse("update_process_group: this rank is no member of the group.");
  if (gradients_.size() == 0)
    refuse("update_process_group: the autograd hooks were removed; wrap the module again.");
  {
    const MutexLock lock(mutex_);
    pass_.reset();
  }
  group_ = group;
  if (own_hook_) hook_ = all_reduce_hook(group);
  if (group.size() > 1 && !attached_) attach();
}

std::shared_ptr<BackwardPass> DataParallel::pass() const {
  const MutexLock lock(mutex_);
  return pass_;
}

bool DataParallel::synchronises() const { return attached_ && holds_ == 0 && at::GradMode::is_enabled(); }

void DataParallel::begin_forward() {
  syncing_ = synchronises();
  if (!syncing_) return;
  check_last_pass();
  check_unchanged();
  if (module_->is_training()) {  // in eval mode a rank may be alone
    if (!observed_order_.empty()) rebuild();
    if (!buffer_hook_ || buffer_hook_location_ == BufferHookLocation::kPreForward) sync_buffers();
  }
  statistics_.begin_iteration();
  if (statistics_.samples_this_one()) {
    pass_observer_ = [this](const PassEvent& event) {
      statistics_.take(event);
      if (observer_) observer_(event);
    };
  } else {
    pass_observer_ = observer_;
  }
  if (pass_observer_) pass_observer_({.phase = PassPhase::kForward, .at = Clock::steady().now()});
}

void DataParallel::sync_buffers() const {
  if (!options_.forward_sync_buffers.value_or(options_.broadcast_buffers.value_or(true))) return;
  const NamedTensors buffers = without_repeats(module_->buffers(), options_.parameters_and_buffers_to_ignore);
  if (buffers.empty()) return;
  if (buffer_hook_) return buffer_hook_(buffers);
  broadcast_from_first(tensors_of(buffers), group_);
}

void DataParallel::end_forward(std::span<const at::Tensor> outputs) {
  if (!syncing_) return;
  if (module_->is_training() && buffer_hook_ && buffer_hook_location_ == BufferHookLocation::kPostForward)
    sync_buffers();
  const PassParts parts{.gradients = gradients_,
                        .hook = hook_,
                        .used = *used_,
                        .group = group_,
                        .observer = pass_observer_,
                        .handing = options_.gradient_as_bucket_view ? Handing::kAlias : Handing::kCopy,
                        .copying = options_.batched_grad_copy ? Copying::kWithItsBucket : Copying::kAtOnce,
                        .skip_unused = options_.skip_all_reduce_unused_params};
  auto pass = std::make_shared<BackwardPass>(parts, used_->expect(outputs));
  {
    const MutexLock lock(mutex_);
    pass_ = std::move(pass);
  }
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    output.register_hook([weak = weak_from_this()](const at::Tensor&) {
      if (const auto self = weak.lock()) self->enter_backward();
    });
  }
}

void DataParallel::forward_failed(const std::exception& error) {
  if (syncing_ && group_.size() > 1) end_group(cat("an exception in forward: ", text_of(error)));
}

void DataParallel::end_group(const std::string& why) const {
  const Rank at{tensor::get_rank()};
  group_.backend()->abort(Status::aborted(
      why, {.failure = Failure::kRemoteError, .peer = at, .op = "backward", .group = group_.name()}));
}

void DataParallel::check_last_pass() {
  const std::shared_ptr<BackwardPass> last = pass();
  if (!last || !last->started()) return;
  {
    const MutexLock lock(mutex_);
    pass_.reset();
  }
  const std::string names = gradients_.names_text(last->missing());
  const Rank at{tensor::get_rank()};
  const std::string what =
      cat("DistributedDataParallel: the last backward pass is not finished, because these parameters got no "
          "gradient on rank ",
          at, ": ", names,
          ". If forward does not always use them, set find_unused_parameters = true; return every tensor "
          "that the loss is made of from forward.");
  end_group(what);
  throw ReductionError(Status::aborted(cat("rank ", at, ": ", what), {.rank = at, .op = "forward"}), at);
}

void DataParallel::check_unchanged() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, parameter] = parameters_[i];
    const PlannedGradient planned = gradients_.planned_of(i);
    if (!parameter.requires_grad())
      refuse(cat("the parameter ", base::quoted(name),
                 " no longer needs a gradient; wrap the module again after freezing."));
    if (parameter.scalar_type() != planned.dtype || parameter.device() != planned.device)
      refuse(cat("the parameter ", base::quoted(name),
                 " has another type or device than when the module was wrapped; wrap it again."));
  }
}

void DataParallel::rebuild() {
  std::vector<std::int64_t> order(observed_order_.begin(), observed_order_.end());
  observed_order_.clear();
  const at::Tensor agreed =
      at::empty({static_cast<std::int64_t>(order.size())}, at::TensorOptions().dtype(at::kLong));
  std::memcpy(agreed.mutable_data_ptr(), order.data(), order.size() * sizeof(std::int64_t));
  tensor::broadcast(agreed, {.group_src = 0, .group = group_});
  std::memcpy(order.data(), agreed.const_data_ptr(), order.size() * sizeof(std::int64_t));
  const std::vector<std::size_t> ranked(order.begin(), order.end());
  gradients_.lay_out(plan_in_order(gradients_.planned(), ranked, limits_));
  rebuilt_ = true;
}

void DataParallel::accumulated(std::size_t parameter) {
  used_->accumulated(parameter);
  const std::shared_ptr<BackwardPass> current = pass();
  if (!current) return;
  enter_backward();
  or_end(current, [&] { current->ready(parameter); });
}

void DataParallel::or_end(const std::shared_ptr<BackwardPass>& current, const std::function<void()>& step) {
  try {
    step();
  } catch (const std::exception& error) {
    end_group(text_of(error));
    drop(current);
    throw;
  }
}

void DataParallel::drop(const std::shared_ptr<BackwardPass>& current) {
  const MutexLock lock(mutex_);
  if (pass_ == current) pass_.reset();
}

void DataParallel::enter_backward() {
  const std::shared_ptr<BackwardPass> current = pass();
  if (!current) return;
  const int task = torch::autograd::get_current_graph_task_id();
  begun_ = true;
  bool entered = false;
  or_end(current, [&] { entered = current->enter(task); });
  if (!entered) return;
  auto watch = std::make_shared<TaskWatch>([weak = weak_from_this(), current] {
    const auto self = weak.lock();
    if (!self) return;
    self->end_group("an exception ended its backward pass");
    self->drop(current);
  });
  torch::autograd::Engine::get_default_engine().queue_callback(
      [weak = weak_from_this(), watch, current, task] {
        watch->reach_end();
        if (const auto self = weak.lock()) self->leave_backward(current, task);
      });
}

void DataParallel::leave_backward(const std::shared_ptr<BackwardPass>& current, int task) {
  if (pass() != current) return;
  bool finished = false;
  or_end(current, [&] {
    finished = current->leave(task);
    if (finished) current->finish();
  });
  if (!finished) return;
  const bool rebuilds = !options_.find_unused_parameters && !rebuilt_;
  if (rebuilds) observed_order_ = current->order();
  drop(current);
}

}  // namespace lockstep::ddp
