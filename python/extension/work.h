// The c10d::Work of one operation of ours.
//
// One that its caller does not wait for is complete when some thread has completed it; its future, if
// somebody asked for it, is completed by the pool (completion_pool.h), whose threads run what hangs on it.
// wait() lets go of the GIL, raises KeyboardInterrupt, and gives the operation's error as torch's exception.
// Who has waited, or was told that it is complete, finds it ended in the trace and for the profiler, too.
//
// Thread safety: any thread.
#pragma once

#include <c10/util/FunctionRef.h>

#include <torch/version.h>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "extension/completion_pool.h"
#include "extension/rank_names.h"
#include "extension/trace.h"
#include "lockstep/base/mutex.h"
#include "lockstep/tensor/group_state.h"
#include "lockstep/tensor/work_handle.h"

namespace lockstep::python {

// What an operation writes, as torch's futures give it: one list, or a list of lists.
using Outputs = std::vector<std::vector<at::Tensor>>;

// What an operation is in. Both are shared with the process group, which may go first.
struct Within {
  std::shared_ptr<tensor::GroupState> state;
  std::shared_ptr<const RankNames> names;
};

struct WorkPlan {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  std::string title = {};               // for the profiler: "lockstep:all_reduce"
  std::vector<at::Tensor> inputs = {};  // for the profiler
  Outputs outputs = {};
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;  // the operation's
  bool is_message = false;                                  // it may be waited for in steps
  Within group;
  std::shared_ptr<CompletionPool> pool;  // shared by all works of the world
};

class LockstepWork final : public c10d::Work {
 public:
  explicit LockstepWork(WorkPlan plan);

  // Calls `begin`, which gives the handle of the operation and may note it in the trace, on this thread.
  // Throws torch's exceptions. Once.
  static c10::intrusive_ptr<LockstepWork> start(
      WorkPlan plan, c10::function_ref<tensor::WorkHandle(std::optional<Traced>&)> begin);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override {}
  bool wait(std::chrono::milliseconds timeout) override;
  // Until it has ended, whichever way, but not for longer than that. Throws if it is interrupted.
  void wait_to_end(Duration patience);
  // Ends its group.
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  // Of c10d::WorkResult, also of one that failed.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  std::uint64_t getSequencenumber() const override { return handle_.sequence(); }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
  std::chrono::milliseconds getTimeout() const override { return plan_.timeout; }
#endif

 private:
  // Until it is complete; throws its error.
  void wait_for_operation(std::chrono::milliseconds timeout) const;
  void wait_in_steps(std::optional<Deadline> deadline) const;
  // After completion; without the GIL, once others know of the work. The first thread that comes does what is
  // to be done then, and the others wait for that: the core wakes who waits before it calls back. Who asks
  // the handle of a message may be that thread, for any message: it holds no lock of a work, and not the GIL.
  void settle();
  void ended();
  // As torch's exception.
  std::exception_ptr failure() const;
  void complete_futures();
  void complete(c10::ivalue::Future& future) const;
  void complete_result(c10::ivalue::Future& result) const;
  // Who has waited for the work finds its future complete.
  void wait_for_future();

  const WorkPlan plan_;
  std::optional<Traced> traced_;  // until ended()
  std::once_flag settled_;
  tensor::WorkHandle handle_;
  Mutex futures_mutex_;
  bool ended_ LOCKSTEP_GUARDED_BY(futures_mutex_) = false;
  c10::intrusive_ptr<c10::ivalue::Future> future_ LOCKSTEP_GUARDED_BY(futures_mutex_);
  c10::intrusive_ptr<c10::ivalue::Future> result_ LOCKSTEP_GUARDED_BY(futures_mutex_);
};

// Waits until no call waits in a group, and no thread of the core holds a work any more, and with it tensors
// of the program: the last to let go of one takes the GIL.
void wait_for_works(const Deadline& deadline);

// Runs `body`, which may wait: without the GIL, and so that Ctrl-C ends it. `group` is what it waits in. Our
// exceptions leave it as torch's.
void run_interruptibly(const Within& group, c10::function_ref<void()> body);

// Several works as one, which is complete when all are. Its result is that of the first that failed.
class CoalescedWork final : public c10d::Work {
 public:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;
  // Of a coalescing scope, whose works may have ended and be gone: nothing, as NCCL's.
  enum class Gives : std::uint8_t { kOutputs, kNothing };

  // What a scope gives. The work itself, if there is one.
  static c10::intrusive_ptr<c10d::Work> of_scope(int rank, Works works);
  // Of one call. Without those that are nothing, because they have ended; nothing, if that is all of them.
  static c10::intrusive_ptr<c10d::Work> of_those_left(int rank, Works works);
  CoalescedWork(int rank, Works works, Gives gives);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  // Of the one receive; -1 if there are others.
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override {}
  // One timeout for all.
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  // Of the longest.
  float getDuration() const override;
  std::uint64_t getSequencenumber() const override;
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
  // The longest.
  std::chrono::milliseconds getTimeout() const override;
#endif

 private:
  const Works works_;
  const Gives gives_;
};

}  // namespace lockstep::python
