// A BackwardPass is the state of one backward pass whose gradients are to be reduced over all ranks.
//
// It is made after forward and destroyed when its gradients are those of all ranks: there is no reset.
// Whenever autograd has accumulated a gradient, ready() copies it to its place in its bucket, unless it was
// accumulated there. A bucket whose gradients are all there is launched, which is: given to the communication
// hook, in plan order (launch_queue.h). finish() waits for them, in that order, and is the only one that
// waits.
//
// The mutex is held to count, and never while a gradient is copied or a hook runs.
//
// Thread safety: ready() from any thread; enter(), leave() and finish() as autograd calls them.
// Errors: ReductionError; what a hook throws; DistError from finish(). After any of them the pass is over,
// and its owner ends the group.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/ddp/comm_hook.h"
#include "lockstep/ddp/gradients.h"
#include "lockstep/ddp/launch_queue.h"
#include "lockstep/ddp/model_purpose.h"
#include "lockstep/ddp/observer.h"
#include "lockstep/ddp/pass_tasks.h"
#include "lockstep/ddp/used_parameters.h"
#include "lockstep/tensor/process_group.h"
#include "lockstep/tensor/work_handle.h"

namespace lockstep::ddp {

// How gradients are handed back.
enum class Handing : std::uint8_t { kAlias, kCopy };

// When a gradient that was not accumulated in its bucket is copied there.
enum class Copying : std::uint8_t { kAtOnce, kWithItsBucket };

// What a pass works on; all but the hook outlives it.
struct PassParts {
  Gradients& gradients;
  CommHookPtr hook;  // shared: another may be registered before backward runs
  UsedParameters& used;
  const tensor::ProcessGroup& group;
  ModelPurpose purpose;
  const PassObserver& observer;  // may be empty
  Handing handing = Handing::kAlias;
  Copying copying = Copying::kAtOnce;
  // Whether a bucket of which this rank uses nothing is left out; all ranks must use the same.
  bool skip_unused = false;
};

class BackwardPass {
 public:
  BackwardPass(const PassParts& parts, Expectation expected);

  // Autograd works on the pass, in a task of that number. True the first time for each task: then leave() is
  // to be called when the task is over.
  bool enter(int task, Entry by);
  // A task that had entered is over. True if the pass is too: no other is open, and nothing is missing but
  // what ends with backward. Then finish() is next.
  bool leave();
  // A gradient was accumulated.
  void ready(std::size_t parameter);
  void finish();

  // Whether a task of autograd has worked on it; else it is still to run.
  bool entered() const { return tasks_.any_came(); }
  // Whether one works on it now, or it is being finished.
  bool running() const { return tasks_.any_is_open() || finishing_; }
  // Whether this one has come to it by its outputs, first or later.
  bool was_entered_by_outputs(int task) const { return tasks_.came_by_outputs(task); }
  // Whether it has begun to take gradients.
  bool started() const;
  // Parameters whose gradients are not final.
  std::vector<std::size_t> missing() const;
  // In the order in which their gradients became final.
  std::vector<std::size_t> order() const;

 private:
  using Parameter = std::size_t;
  enum class Use : std::uint8_t { kUsed, kUnused };  // by this rank, in this pass
  struct Taken {
    Parameter parameter;
    Use use;
  };
  // Brings the gradient to its place in the bucket; of one that was not used, what it has.
  void take(Taken taken);
  // The gradients that waited for this one, which is there now.
  void take_delayed(Parameter last);
  // What is missing, and ends with backward.
  void take_rest();
  void take_sparse(Parameter parameter, GradBucket& bucket);
  void copy_deferred(std::size_t bucket);
  void point_to_bucket(Parameter parameter);
  void count_down(std::size_t bucket);
  void launch(std::size_t bucket);
  void settle(std::size_t bucket);
  void hand_back(Parameter parameter);
  void restore(Parameter parameter);
  void tell(PassPhase phase, std::size_t index, Duration running = {}, Duration waiting = {}) const;
  // Whether this rank has nothing for the bucket, and leaves it out.
  bool may_skip(std::size_t bucket) const;
  void check_skipped(std::size_t bucket) const;
  [[noreturn]] void refuse(const std::string& what) const;

  const PassParts parts_;
  const Expectation expected_;

  PassTasks tasks_;
  LaunchQueue launches_;
  std::atomic<bool> finishing_ = false;

  mutable Mutex mutex_;
  std::vector<int> left_ LOCKSTEP_GUARDED_BY(mutex_);  // by parameter: how often until it is final
  std::vector<Parameter> order_ LOCKSTEP_GUARDED_BY(mutex_);

  // By whoever launches, then by finish().
  std::vector<HookWork> works_;
  std::vector<bool> skipped_;  // by bucket
  at::Tensor map_;
  tensor::WorkHandle map_work_;
  // Of parameters that this rank has not used: their gradients as they were.
  std::unordered_map<Parameter, at::Tensor> as_they_were_;
  // By parameter, each set before its bucket is counted down: a gradient that has a graph (create_graph), and
  // one that is copied with its bucket.
  std::vector<at::Tensor> with_graph_;
  std::vector<at::Tensor> deferred_;
};

}  // namespace lockstep::ddp
