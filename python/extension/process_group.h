// One group of torch's as a c10d::Backend: torch's calls on one side, tensor/ on the other.
//
// A call with asyncOp == false runs on the calling thread, and has ended when it returns; its error is thrown
// there. Others run on the group's worker, or on the thread that waits for them first.
//
// Thread safety: any thread; as with every backend of torch, all ranks issue collectives in the same order.
// Coalescing: what a thread issues between startCoalescing() and endCoalescing() is waited for by one Work.
// shutdown() leaves the group. It waits up to 5 s for collectives that were issued, of a group that has not
// failed, and for nobody else; but where rank 0 serves torch's store, the others wait a moment for the end of
// that. The destructor leaves at once.
#pragma once

#include <c10/util/FunctionRef.h>

#include <torch/version.h>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "extension/trace.h"
#include "extension/work.h"
#include "extension/worlds.h"
#include "lockstep/base/mutex.h"

namespace lockstep::python {

class ProcessGroupLockstep final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensor = at::Tensor;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;

  // Meets the other members. Throws torch's exceptions.
  static c10::intrusive_ptr<ProcessGroupLockstep> create(const GroupRequest& request);
  ProcessGroupLockstep(MadeGroup made, OptionsPtr options);
  ~ProcessGroupLockstep() override;

  const std::string getBackendName() const override { return "lockstep"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options(); }
  bool supportsSplitting() const override { return true; }
  // torch asks for the sake of batch_isend_irecv() alone, which would make a scope that a call that is
  // refused leaves open, and with it later collectives undone. Who begins a scope by name has one all the
  // same.
  bool supportsCoalescing() const override { return false; }
  bool supportsShrinking() const override { return true; }
  bool supportsTensorAlloc(c10::DeviceIndex /*device*/) override { return true; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}  // it is 0 on all ranks
  std::uint64_t getSequenceNumberForGroup() override;
  void enableCollectivesTiming() override {}  // every work knows how long it took
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

  // The title that the profiler shows begins with it.
  void set_profiling_name(std::string name) { profiling_name_ = std::move(name); }
  // Resident: operations use it where it lies.
  Tensor allocateTensor(long size, at::TensorOptions options) override;
  Tensor empty_resident(at::IntArrayRef sizes, at::ScalarType type);

  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;
  // A group of `size` ranks that meet in `store`, whichever groups they were in.
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& opts,
                                          const int& rank, const int& size) override;
  c10::intrusive_ptr<c10d::Backend> shrink(
      const std::vector<std::int64_t>& ranks_to_exclude, int shrink_flags,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts_override) override;

  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
  WorkPtr gather_single(Tensor& output, Tensor& input, const c10d::GatherOptions& opts) override;
#endif
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(Tensor& output, Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(Tensor& output, Tensor& input, std::vector<std::int64_t>& output_sizes,
                        std::vector<std::int64_t>& input_sizes, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

 private:
  // What the profiler, the future and the trace are told of an operation. Borrows the call's arguments.
  struct Named {
    c10d::OpType type;
    const char* name;
    c10::ArrayRef<Tensor> inputs = {};
    c10::ArrayRef<Tensor> output = {};    // one list of what is written,
    c10::ArrayRef<Tensors> outputs = {};  // or several
    bool async_op = true;
    std::optional<int> peer = {};  // of a message; -1: anybody
    std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  };
  template <typename Written, typename Given>
  static Named named(c10d::OpType type, const char* name, c10::ArrayRef<Tensor> inputs,
                     const Written& written, const Given& given);
  using Begin = c10::function_ref<tensor::WorkHandle()>;
  // Nothing, as torch has it, where the operation has ended and nobody looks at it.
  WorkPtr issue(const Named& named, Begin begin);
  // What it is begun by is given a place for the note of it.
  WorkPtr start(const Named& named, c10::function_ref<tensor::WorkHandle(std::optional<Traced>&)> begin);
  std::chrono::milliseconds timeout_of(const Named& named) const LOCKSTEP_REQUIRES(mutex_);
  // In the trace, with its number.
  void note(const Named& named, std::optional<Traced>& traced);
  // Of a call that was refused before anything was sent: the next has its number, as on the other ranks.
  void take_back(const Named& named, std::optional<Traced>& traced);
  // Throws ValueError. Before a lock is taken, which a thread may have held that is not in the child.
  void refuse_in_forked_child(const Named& named) const;
  // Throws ValueError.
  void refuse_other_devices(const Named& named) const;
  // Until the last collective that was issued has ended, and with it all; not for long.
  void drain();
  void leave();
  bool is_coalescing() const;
  void collect(const WorkPtr& work);
  tensor::ProcessGroup group() const { return tensor::ProcessGroup(within_.state); }
  // Throws ValueError unless the list has one tensor, as torch's own calls have.
  const Tensor& only(const char* call, const Tensors& tensors) const;
  const Tensors& only(const char* call, const TensorLists& lists) const;
  // Throws ValueError if it is negative.
  std::uint32_t tag_of(const char* call, int tag) const;
  // Throws ValueError unless there is an output for each input.
  void check_pairs(const char* call, const Tensors& outputs, const Tensors& inputs) const;
  std::shared_ptr<Stay> stay(const char* call) const;
  OptionsPtr options() const;
  // What is said of a world is said of this one, unless `given` are options of ours.
  OptionsPtr options_for(const c10::intrusive_ptr<c10d::Backend::Options>& given) const;
  // The group of the last split, if it was of this name and these ranks, and is there. torch asks once for
  // each kind of device.
  c10::intrusive_ptr<c10d::Backend> split_already(const std::string& name, const std::vector<int>& ranks);

  struct Split {
    std::string name;
    std::vector<int> ranks;
    c10::weak_intrusive_ptr<c10d::Backend> group;
  };

  const Standing standing_;
  const Within within_;
  std::string profiling_name_ = "lockstep";
  mutable Mutex mutex_;
  OptionsPtr options_ LOCKSTEP_GUARDED_BY(mutex_);          // which do not change: setTimeout() makes others
  std::shared_ptr<Stay> stay_ LOCKSTEP_GUARDED_BY(mutex_);  // nothing after shutdown()
  const std::shared_ptr<CompletionPool> pool_;
  std::map<std::thread::id, std::vector<WorkPtr>> coalescing_ LOCKSTEP_GUARDED_BY(mutex_);
  // The last collective that somebody was to wait for; the core keeps it until it has ended.
  std::optional<c10::weak_intrusive_ptr<LockstepWork>> last_ LOCKSTEP_GUARDED_BY(mutex_);
  std::shared_ptr<const TracedGroup> traced_ LOCKSTEP_GUARDED_BY(mutex_);  // from the first operation on
  std::uint64_t collectives_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::uint64_t messages_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::optional<Split> split_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::python
