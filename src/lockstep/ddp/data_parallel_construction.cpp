#include <algorithm>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/ddp/failure.h"
#include "lockstep/ddp/logger.h"
#include "lockstep/tensor/errors.h"

namespace lockstep::ddp {
namespace {

// What is being caught is this rank's alone: nobody is to wait for it.
void end_group_of_failed(const tensor::ProcessGroup& group) {
  end_group(group, "DistributedDataParallel",
            cat("an exception in the construction of DistributedDataParallel: ", text_of_exception()));
}

void check_tensors(const ModelParts& parts, const DataParallelOptions& options) {
  const bool alone = options.process_group.size() < 2;
  const auto check = [alone](const char* what, const NamedTensors& tensors, bool is_sent) {
    for (const auto& [name, tensor] : tensors) {
      if (!tensor.is_cpu())
        refuse(cat("the ", what, ' ', base::quoted(name), " is on ", tensor.device().str(),
                   "; gradients are reduced on the CPU. Move the module there before it is wrapped: "
                   "module->to(torch::kCPU)."));
      if (alone || !is_sent) continue;
      if (const std::string why = why_not_shared(tensor); !why.empty())
        refuse(cat("the ", what, ' ', base::quoted(name), ' ', why));
    }
  };
  for (const auto& [name, parameter] : parts.parameters) {
    if (!parameter.is_leaf())
      refuse(cat("the parameter ", base::quoted(name),
                 " was computed from other tensors, so its gradient would go on to those. Register its "
                 "detach().requires_grad_(), or make it under torch::NoGradGuard, also by a script's "
                 "deepcopy()."));
  }
  check("parameter", parts.parameters, options.init_sync);
  check("buffer", parts.buffers, options.init_sync || syncs_buffers(options));
}

}  // namespace

// All that a rank can find wrong by itself is found here, before the ranks meet.
DataParallel::Prepared DataParallel::prepare(std::unique_ptr<ModuleView> module,
                                             DataParallelOptions options) {
  if (!module) refuse("there is no module: the pointer or holder is empty.");
  check(options);
  const std::vector<std::string>& ignored = options.parameters_and_buffers_to_ignore =
      names_to_ignore(*module, std::move(options.parameters_and_buffers_to_ignore));
  ModelParts parts{.parameters = without_repeats(module->parameters(), ignored),
                   .buffers = {},
                   .gradients = {},
                   .settings = settings_text(options)};
  if (shares_buffers(options)) parts.buffers = without_repeats(module->buffers(), ignored);
  NamedTensors trained;
  std::copy_if(parts.parameters.begin(), parts.parameters.end(), std::back_inserter(trained),
               [](const auto& named) { return named.second.requires_grad(); });
  check_tensors(parts, options);
  if (trained.empty())
    refuse(
        "the module has no parameter that needs a gradient, or all are ignored or belong to a "
        "DistributedDataParallel inside it, so there is nothing to reduce; use the module itself.");
  std::shared_ptr<DataParallel> made(new DataParallel(std::move(module), std::move(options), trained));
  for (std::size_t i = 0; i < made->gradients_.size(); ++i) {
    const PlannedGradient& planned = made->gradients_.planned_of(i);
    parts.gradients.emplace_back(made->gradients_.name(i),
                                 cat(planned.elements, planned.sparse ? " sparse" : "", " elements of type ",
                                     c10::toString(planned.dtype)));
  }
  return {std::move(parts), std::move(made)};
}

std::shared_ptr<DataParallel> DataParallel::make(std::unique_ptr<ModuleView> module,
                                                 const DataParallelOptions& options) {
  const tensor::ProcessGroup& group = options.process_group;
  if (!group.is_member())  // and nobody waits for it
    refuse("this rank is no member of the process group; only its members wrap a module for it.");
  Prepared prepared;
  try {
    prepared = prepare(std::move(module), options);
  } catch (const tensor::InvalidArgument& refusal) {
    if (options.init_sync) tell_refusal(refusal.message(), group);
    throw;
  } catch (...) {
    end_group_of_failed(group);
    throw;
  }
  if (options.init_sync) {
    prepared.made->purpose_ =
        ModelPurpose(prepared.made->gradients_, check_same_on_all_ranks(prepared.parts, group));
  }
  try {
    prepared.made->start(prepared.parts);
  } catch (...) {
    end_group_of_failed(group);
    throw;
  }
  return prepared.made;
}

DataParallel::DataParallel(std::unique_ptr<ModuleView> module, DataParallelOptions options,
                           const NamedTensors& parameters)
    : module_(std::move(module)),
      group_(std::exchange(options.process_group, {})),
      options_(std::move(options)),
      snapshot_(parameters),
      gradients_(parameters, options_, module_->sparse_parameters()),
      purpose_(gradients_),
      used_(used_parameters_for(options_, gradients_)),
      hook_(all_reduce_hook()),
      schedule_(options_),
      buffers_(*module_, options_),
      running_({.beginning = [this] { schedule_.bring_up_to_date(gradients_); },
                .finished = [this](const auto& order) { schedule_.saw(order, group_); },
                .astray = [this](const std::vector<std::size_t>& all) { return warn_of_strays(all); }}) {}

void DataParallel::start(const ModelParts& parts) {
  running_.belong_to({shared_from_this(), &running_});
  if (options_.init_sync) broadcast_from_first(parts.parameters, group_, 0);
  buffers_.at_construction(group_, purpose_.of_buffers());
  if (group_.size() > 1) attach();
  kLog.info(introduction());
}

}  // namespace lockstep::ddp
