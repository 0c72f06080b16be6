// DataParallel is the wiring of data parallelism: it stands around a module's forward, hears when gradients
// are accumulated, and gives each synchronised backward pass its BackwardPass. Users meet it as
// DistributedDataParallel.
//
// A gradient's way: the hook of its GradientSlot calls here -> RunningPass -> BackwardPass -> CommHook ->
// the process group -> its backend -> the algorithm -> shared memory or the wire.
//
// Thread safety: one forward or backward at a time, in whatever threads; beside it forwards under no_grad,
// but for those of a script with buffers. Ownership: shared, because hooks of the graph refer to it weakly.
// Errors: InvalidArgument for a module or options that cannot be; ReductionError and DistError from forward
// and backward. After one of these two the group has failed, on all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <typeinfo>
#include <vector>

#include "lockstep/ddp/backward_pass.h"
#include "lockstep/ddp/bucket_schedule.h"
#include "lockstep/ddp/buffer_sync.h"
#include "lockstep/ddp/comm_hook.h"
#include "lockstep/ddp/gradients.h"
#include "lockstep/ddp/logging_data.h"
#include "lockstep/ddp/module_view.h"
#include "lockstep/ddp/observer.h"
#include "lockstep/ddp/options.h"
#include "lockstep/ddp/parameters.h"
#include "lockstep/ddp/pass_watch.h"
#include "lockstep/ddp/running_pass.h"
#include "lockstep/ddp/unregistered.h"
#include "lockstep/ddp/used_parameters.h"

namespace lockstep::ddp {

class DataParallel final : public std::enable_shared_from_this<DataParallel> {
 public:
  // The parameters and buffers of a DistributedDataParallel inside the module are that one's alone.
  // A collective, unless init_sync is off: what one rank refuses (InvalidArgument) is thrown on all, with the
  // rank and its reason, and the group lives on. Anything else that goes wrong on one rank ends the group.
  // `module` is null where the user has none, which is refused.
  static std::shared_ptr<DataParallel> make(std::unique_ptr<ModuleView> module,
                                            const DataParallelOptions& options);
  ~DataParallel();

  // What a forward is to the other ranks. Accumulating is training under no_sync(): they wait for its end.
  enum class ForwardKind : std::uint8_t { kAlone, kAccumulating, kSynchronised };
  // Of the forward that begins now.
  ForwardKind next_kind() const;
  // Around every forward of the module, with the tensors that it returned.
  void begin_forward(ForwardKind kind);
  // Whether the tensors that the next forward is given are to be told, where they are known.
  bool wants_inputs() const { return next_kind() == ForwardKind::kSynchronised && unregistered_.is_due(); }
  void set_inputs(std::vector<at::Tensor> inputs) { unregistered_.set_inputs(std::move(inputs)); }
  // Instead: they are not, because one is a T that is not looked into.
  void inputs_are_unknown(const std::type_info& type) { unregistered_.leave_out(type); }
  // `unknown`: a type among the outputs that is not looked into (void: there are none), or null.
  // InvalidArgument where the outputs must be known.
  void end_forward(ForwardKind kind, std::span<const at::Tensor> outputs, const std::type_info* unknown);
  // Forward has thrown what is being caught: the other ranks are told.
  void forward_failed(ForwardKind kind);

  // While the count is above 0, what forward begins is not synchronised.
  void hold_sync() { ++holds_; }
  void release_sync() { --holds_; }

  // Once, before the first backward.
  void register_comm_hook(CommHookPtr hook);
  void register_buffer_comm_hook(BufferHook hook, BufferHookLocation where) {
    buffers_.set_hook(std::move(hook), where);
  }
  void observe(PassObserver observer) { watch_.observe(std::move(observer)); }
  void remove_autograd_hooks();
  // For a group of survivors or newcomers; all its ranks call it between two passes, or have just wrapped the
  // module for it. Buckets and what is known of used parameters begin anew, as after construction.
  void update_process_group(const tensor::ProcessGroup& group);

  // One of so many passes is sampled for the times of logging_data(), after the first ten.
  void set_runtime_logging_sample_rate(int rate);
  LoggingData logging_data() const;

  const Gradients& gradients() const { return gradients_; }
  bool has_rebuilt_buckets() const { return schedule_.has_rebuilt(); }
  const CommHook& hook() const { return *hook_; }
  const tensor::ProcessGroup& group() const { return group_; }

 private:
  DataParallel(std::unique_ptr<ModuleView> module, DataParallelOptions options,
               const NamedTensors& parameters);
  struct Prepared {
    ModelParts parts;
    std::shared_ptr<DataParallel> made;
  };
  static Prepared prepare(std::unique_ptr<ModuleView> module, DataParallelOptions options);
  void start(const ModelParts& parts);
  void attach();
  // Whether it was told.
  bool warn_of_strays(const std::vector<std::size_t>& parameters);
  void check_unchanged() const;
  void check_last_pass();
  // Of the last pass, which is given up then; empty if it is finished, or never began.
  std::string unfinished_text();
  // One line, for the log.
  std::string introduction() const;

  const std::unique_ptr<ModuleView> module_;
  tensor::ProcessGroup group_;
  const DataParallelOptions options_;  // without the group, which would live on after another has taken over
  const ParameterSnapshot snapshot_;   // of the parameters that need gradients
  Gradients gradients_;
  ModelPurpose purpose_;
  std::unique_ptr<UsedParameters> used_;
  CommHookPtr hook_;
  bool own_hook_ = true;
  bool attached_ = false;
  std::atomic<int> holds_ = 0;
  BucketSchedule schedule_;
  PassWatch watch_;
  BufferSync buffers_;
  UnregisteredSearch unregistered_;
  RunningPass running_;
};

}  // namespace lockstep::ddp
