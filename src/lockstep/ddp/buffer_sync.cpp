#include "lockstep/ddp/buffer_sync.h"
#include "lockstep/ddp/logger.h"

#include <utility>

namespace lockstep::ddp {
void BufferSync::set_hook(BufferHook hook, BufferHookLocation where) {
  if (!hook) refuse("register_buffer_comm_hook: the hook is null.");
  hook_ = std::move(hook);
  where_ = where;
}

NamedTensors BufferSync::buffers() const {
  return without_repeats(module_.buffers(), options_.parameters_and_buffers_to_ignore);
}

void BufferSync::at_construction(const tensor::ProcessGroup& group) const {
  if (options_.forward_sync_buffers && options_.broadcast_buffers)
    kLog.warn("forward_sync_buffers and broadcast_buffers are both given; broadcast_buffers is ignored.");
  if (options_.init_sync && shares_buffers(options_)) broadcast_from_first(buffers(), group);
}

void BufferSync::around_forward(BufferHookLocation where, const tensor::ProcessGroup& group) const {
  if (where != where_ || !on() || !module_.is_training()) return;  // in eval mode a rank may be alone
  const NamedTensors all = buffers();
  if (all.empty()) return;
  if (hook_) return hook_(all);
  broadcast_from_first(all, group);
}

}  // namespace lockstep::ddp
