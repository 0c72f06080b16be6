#include "lockstep/ddp/buffer_sync.h"

#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/ddp/logger.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/groups.h"
#include "lockstep/tensor/operation.h"

namespace lockstep::ddp {

void BufferSync::set_hook(BufferHook hook, BufferHookLocation where) {
  if (!hook) refuse("register_buffer_comm_hook: the hook is null.");
  hook_ = std::move(hook);
  where_ = where;
}

NamedTensors BufferSync::buffers() const {
  return without_repeats(module_.buffers(), options_.parameters_and_buffers_to_ignore);
}

std::string BufferSync::what_has_changed(const NamedTensors& all) const {
  std::vector<std::string> changes;
  for (const auto& [name, buffer] : all) {
    const auto known = sizes_.find(name);
    if (known == sizes_.end()) {
      changes.push_back(cat(base::quoted(name), " is new"));
    } else if (buffer.sizes() != known->second) {
      changes.push_back(cat(base::quoted(name), " has the shape ", tensor::shape_text(buffer), ", it had ",
                            tensor::shape_text(known->second)));
    }
  }
  if (all.size() < sizes_.size()) changes.emplace_back("some are gone");
  return base::join(changes, "; ");
}

void BufferSync::broadcast(const NamedTensors& all, const tensor::ProcessGroup& group,
                           std::uint64_t purpose) {
  for (const auto& [name, buffer] : all) {
    if (const std::string why = why_not_shared(buffer); !why.empty())
      refuse(cat("the buffer ", base::quoted(name), ' ', why));
  }
  const std::string changes = what_has_changed(all);
  try {
    broadcast_from_first(all, group, purpose);
  } catch (const tensor::Desync& error) {
    const Rank at{tensor::get_rank()};
    const std::string here = changes.empty() ? "are as they were" : cat("have changed: ", changes);
    throw tensor::Desync(error.status().with_prefix(
                             cat("the buffers of the module have other sizes on other ranks",
                                 changes.empty() ? ", or these are in the forward of another model" : "",
                                 "; those of rank ", at, ' ', here)),
                         at);
  }
  if (changes.empty()) return;
  sizes_.clear();
  for (const auto& [name, buffer] : all) sizes_.emplace(name, buffer.sizes().vec());
}

void BufferSync::at_construction(const tensor::ProcessGroup& group, std::uint64_t purpose) {
  if (options_.forward_sync_buffers && options_.broadcast_buffers)
    kLog.warn("forward_sync_buffers and broadcast_buffers are both given; broadcast_buffers is ignored.");
  if (options_.init_sync && shares_buffers(options_)) broadcast(buffers(), group, purpose);
}

void BufferSync::around_forward(BufferHookLocation where, const tensor::ProcessGroup& group,
                                std::uint64_t purpose) {
  if (where != where_ || !on() || !module_.is_training()) return;  // in eval mode a rank may be alone
  const NamedTensors all = buffers();
  if (all.empty()) return;
  if (hook_) return hook_(all);
  broadcast(all, group, purpose);
}

}  // namespace lockstep::ddp
