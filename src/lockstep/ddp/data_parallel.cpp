#include "lockstep/ddp/data_parallel.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Type.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/ddp/failure.h"
#include "lockstep/ddp/logger.h"
#include "lockstep/ddp/parameters.h"
#include "lockstep/tensor/groups.h"

namespace lockstep::ddp {
DataParallel::~DataParallel() {
  try {  // there is no next forward that would say it
    const std::string what = unfinished_text();
    if (what.empty() || !group_.backend()->failure().ok()) return;
    kLog.error(what);
    end_group(group_, "backward", what);
  } catch (const std::exception&) {  // the world has ended before: there is nobody to tell
  }
}

void DataParallel::attach() {
  gradients_.lay_out(schedule_.first_plan(gradients_));
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    gradients_.slot(i).when_accumulated([weak = weak_from_this(), i] {
      const auto self = weak.lock();
      if (!self) return;
      self->used_->accumulated(i);
      self->running_.accumulated(i);
    });
  }
  attached_ = true;
}

void DataParallel::remove_autograd_hooks() {
  if (running_.runs()) refuse("remove_autograd_hooks: a backward pass runs; call it when that is over.");
  running_.forget_forwards();
  gradients_ = Gradients();
  attached_ = false;
}

void DataParallel::register_comm_hook(CommHookPtr hook) {
  if (!hook) refuse("register_comm_hook: the hook is null.");
  if (!own_hook_)
    refuse(cat("register_comm_hook: the hook ", hook_->name(), " was registered before; a model has one."));
  if (gradients_.size() == 0)
    refuse("register_comm_hook: the autograd hooks were removed; wrap the module again.");
  if (running_.has_ever_begun())
    refuse("register_comm_hook: a backward pass has been; register a hook before the first.");
  hook_ = std::move(hook);
  own_hook_ = false;
  if (!attached_) attach();
}

void DataParallel::update_process_group(const tensor::ProcessGroup& group) {
  if (running_.runs()) refuse("update_process_group: a backward pass runs; call it when that is over.");
  if (!group.is_member()) refuse("update_process_group: this rank is no member of the group.");
  if (gradients_.size() == 0)
    refuse("update_process_group: the autograd hooks were removed; wrap the module again.");
  // A rank that is new to the group begins like this too: one plan, and one idea of what is used.
  running_.forget_forwards();
  group_ = group;
  purpose_ = ModelPurpose(gradients_);
  used_ = used_parameters_for(options_, gradients_);
  schedule_.begin_anew();
  if (attached_) gradients_.lay_out(schedule_.first_plan(gradients_));
  if (group.size() > 1 && !attached_) attach();
}

DataParallel::ForwardKind DataParallel::next_kind() const {
  if (!attached_ || !at::GradMode::is_enabled()) return ForwardKind::kAlone;
  if (holds_ == 0) return ForwardKind::kSynchronised;
  return module_->is_training() ? ForwardKind::kAccumulating : ForwardKind::kAlone;
}

void DataParallel::begin_forward(ForwardKind kind) {
  if (!attached_ && holds_ == 0 && at::GradMode::is_enabled()) watch_.count();
  if (attached_ && at::GradMode::is_enabled()) gradients_.follow_parameters();
  if (kind != ForwardKind::kSynchronised) return;
  check_last_pass();
  check_unchanged();
  buffers_.around_forward(BufferHookLocation::kPreForward, group_, purpose_.of_buffers());
  watch_.begin_pass();
}

void DataParallel::end_forward(ForwardKind kind, std::span<const at::Tensor> outputs,
                               const std::type_info* unknown) {
  if (kind == ForwardKind::kAlone) return running_.stay_alone();
  const PassParts parts{.gradients = gradients_,
                        .hook = hook_,
                        .used = *used_,
                        .group = group_,
                        .purpose = purpose_,
                        .observer = watch_.observer(),
                        .handing = options_.gradient_as_bucket_view ? Handing::kAlias : Handing::kCopy,
                        .copying = options_.batched_grad_copy ? Copying::kWithItsBucket : Copying::kAtOnce,
                        .skip_unused = options_.skip_all_reduce_unused_params};
  if (kind == ForwardKind::kAccumulating)
    return running_.begin(parts, {}, outputs, RunningPass::Mode::kAccumulating);
  if (unknown != nullptr && used_->searches()) {
    refuse(cat("find_unused_parameters looks for what the outputs of forward depend on, but forward gives ",
               *unknown == typeid(void) ? "nothing. Return every tensor that the loss is made of."
                                        : cat("a ", c10::demangle(unknown->name()),
                                              ", which is not looked into. Return tensors, or specialise "
                                              "lockstep::ddp::OutputTensors for that type.")));
  }
  buffers_.around_forward(BufferHookLocation::kPostForward, group_, purpose_.of_buffers());
  if (unregistered_.has_inputs()) unregistered_.look(outputs, module_->parameters(), gradients_);
  running_.begin(parts, used_->expect(outputs), outputs,
                 module_->is_training() ? RunningPass::Mode::kTraining : RunningPass::Mode::kEvaluation);
}

void DataParallel::forward_failed(ForwardKind kind) {
  if (kind == ForwardKind::kAlone || !module_->is_training()) return;  // it may be alone
  end_group(group_, "forward", cat("an exception in forward: ", text_of_exception()));
}

std::string DataParallel::unfinished_text() {
  const std::shared_ptr<BackwardPass> last = running_.take_unfinished();
  if (!last) return {};
  if (last->running()) {
    return cat(
        "DistributedDataParallel: the last backward pass still runs on rank ", tensor::get_rank(),
        ". Call forward when it is over; a reentrant checkpoint around the model calls it in backward.");
  }
  return cat(
      "DistributedDataParallel: the last backward pass is not finished, because these parameters got no "
      "gradient on rank ",
      tensor::get_rank(), ": ", gradients_.names_text(last->missing()),
      ". If forward does not always use them, set find_unused_parameters = true; return every tensor that "
      "the loss is made of from forward.");
}

void DataParallel::check_last_pass() {
  const std::string what = unfinished_text();
  if (what.empty()) return;
  end_group(group_, "forward", what);
  throw_reduction_error("forward", what);
}

void DataParallel::check_unchanged() const {
  const NamedTensors now = without_repeats(module_->parameters(), options_.parameters_and_buffers_to_ignore);
  const std::string difference = snapshot_.difference_to(now);
  if (difference.empty()) return;
  const std::string what =
      cat(difference, " since the module was wrapped; wrap it again, on all ranks and for a new group.");
  end_group(group_, "forward", what);
  refuse(what);
}

bool DataParallel::warn_of_strays(const std::vector<std::size_t>& parameters) {
  std::vector<std::size_t> own;  // what others hear of too, they reduce
  std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(own),
               [&](std::size_t parameter) { return gradients_.slot(parameter).may_alias(); });
  if (own.empty()) return false;
  kLog.warn(cat(
      "A backward that has not come through what the model's forward returned has given gradients to ",
      gradients_.names_text(own),
      ", and nothing reduces them: they are this rank's own. Call the model, not model->forward(), and make "
      "the loss of what it returns. This is said once."));
  return true;
}

}  // namespace lockstep::ddp
