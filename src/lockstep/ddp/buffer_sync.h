// BufferSync makes the buffers of a module those of rank 0, or what a hook makes of them, around each forward
// in training mode whose backward is synchronised. Internal.
//
// Buffers are asked for anew each time: a module may have been given others. Thread safety: one thread.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
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
  // Desync where buffers have other names, types or shapes on another rank: it names those that are others
  // here than before.
  // InvalidArgument for one that has become such as cannot be shared.
  void around_forward(BufferHookLocation where, const tensor::ProcessGroup& group, std::uint64_t purpose);

 private:
  NamedTensors buffers() const;
  void broadcast(const NamedTensors& all, const tensor::ProcessGroup& group, std::uint64_t purpose);
  // In words; "" if all are of the kinds that they were when they were last sent.
  std::string what_has_changed(const NamedTensors& all) const;
  void remember(const NamedTensors& all);

  const ModuleView& module_;
  const DataParallelOptions& options_;
  BufferHook hook_;
  BufferHookLocation where_ = BufferHookLocation::kPreForward;
  // What a buffer is, besides its values.
  struct Kind {
    explicit Kind(const NamedTensors::value_type& buffer);
    bool is_of(const NamedTensors::value_type& buffer) const;
    std::string name;
    c10::ScalarType dtype;
    std::vector<std::int64_t> sizes;
  };
  std::vector<Kind> kinds_;  // of those that were last sent, in their order
  std::uint32_t checksum_of_kinds_ = 0;
};

}  // namespace lockstep::ddp

namespace lockstep {
using ddp::BufferHookLocation;
}
