// BufferSync makes the buffers of a module those of rank 0, or what a hook makes of them, around each forward
// whose backward is synchronised. Internal.
//
// Buffers are asked for anew each time: a module may have been given others. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

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
  // `purpose`: ModelPurpose::of_buffers().
  void at_construction(const tensor::ProcessGroup& group, std::uint64_t purpose);
  // Desync where buffers have other sizes on another rank: it names those that have others here than before.
  // InvalidArgument for one that has become such as cannot be shared.
  void around_forward(BufferHookLocation where, const tensor::ProcessGroup& group, std::uint64_t purpose);

 private:
  NamedTensors buffers() const;
  void broadcast(const NamedTensors& all, const tensor::ProcessGroup& group, std::uint64_t purpose);
  // In words; "" if all have the sizes that they had when they were last sent.
  std::string what_has_changed(const NamedTensors& all) const;

  const ModuleView& module_;
  const DataParallelOptions& options_;
  BufferHook hook_;
  BufferHookLocation where_ = BufferHookLocation::kPreForward;
  std::map<std::string, std::vector<std::int64_t>> sizes_;  // by name, as they were last sent
};

}  // namespace lockstep::ddp

namespace lockstep {
using ddp::BufferHookLocation;
}
