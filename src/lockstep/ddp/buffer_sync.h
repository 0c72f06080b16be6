// BufferSync makes the buffers of a module those of rank 0, or what a hook makes of them, around each forward
// whose backward is synchronised. Internal.
//
// Buffers are asked for anew each time: a module may have been given others. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/ddp/module_view.h"
#include "lockstep/ddp/options.h"
#include "lockstep/ddp/parameters.h"
#include "lockstep/tensor/process_group.h"

namespace lockstep::ddp {

// What buffers become before or after forward, instead of rank 0's.
enum class BufferHookLocation : std::uint8_t { kPreForward, kPostForward };
using BufferHook = std::function<void(const NamedTensors& buffers)>;

class BufferSync {
 public:
  // The module outlives it.
  BufferSync(const ModuleView& module, const DataParallelOptions& options)
      : module_(module), options_(options) {}

  void set_hook(BufferHook hook, BufferHookLocation where);
  bool on() const { return syncs_buffers(options_); }
  void at_construction(const tensor::ProcessGroup& group) const;
  void around_forward(BufferHookLocation where, const tensor::ProcessGroup& group) const;

 private:
  NamedTensors buffers() const;

  const ModuleView& module_;
  const DataParallelOptions& options_;
  BufferHook hook_;
  BufferHookLocation where_ = BufferHookLocation::kPreForward;
};

}  // namespace lockstep::ddp

namespace lockstep {
using ddp::BufferHookLocation;
}
