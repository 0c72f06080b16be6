// RunningPass is the backward pass that runs, or is to run next, and how autograd comes to it: by hooks on
// the outputs of forward and on gradients, and by callbacks at the end of its tasks.
//
// What a step of the pass throws ends the group and the pass; so does an exception elsewhere in backward, and
// one that lets the outputs go before it. torch::autograd::grad() is not a backward pass: it accumulates
// nothing, so nothing is reduced. Internal.
//
// Thread safety: any thread. Ownership: a part of what its passes work on, which hooks of the graph refer to
// weakly: see belong_to().
// Errors: ReductionError; DistError; what a communication hook throws.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/ddp/backward_pass.h"
#include "lockstep/tensor/process_group.h"

namespace lockstep::ddp {

class RunningPass final {
 public:
  // Called when a pass is finished, which is when all ranks are there, with the order in which its gradients
  // became final. It may communicate.
  using Finished = std::function<void(const std::vector<std::size_t>& order)>;
  // In evaluation a rank may be alone: its pass begins with a backward through its own outputs, if there ever
  // is one, and outputs that an exception lets go are nothing to the others.
  enum class Mode : std::uint8_t { kTraining, kEvaluation };

  explicit RunningPass(Finished finished) : finished_(std::move(finished)) {}

  // Once, first: who locks `self` keeps alive what it is a part of.
  void belong_to(const std::shared_ptr<RunningPass>& self) { self_ = self; }
  // After forward. One that has not run is given up.
  void begin(std::shared_ptr<BackwardPass> pass, const tensor::ProcessGroup& group,
             std::span<const at::Tensor> outputs, Mode mode);
  // A gradient was accumulated.
  void accumulated(std::size_t parameter);
  void give_up();
  // The pass, if it was begun by backward and is not finished; then it is given up.
  std::shared_ptr<BackwardPass> take_unfinished();
  bool has_ever_begun() const;

 private:
  struct Current {
    std::shared_ptr<BackwardPass> pass = {};  // shared with the tasks of autograd
    tensor::ProcessGroup group = {};
  };
  Current current() const;
  void backward_reached(const std::weak_ptr<BackwardPass>& pass);
  void enter();
  void leave(const Current& current, int task);
  void unwound(const std::weak_ptr<BackwardPass>& pass);
  void or_end(const Current& current, const std::function<void()>& step);
  void drop(const std::shared_ptr<BackwardPass>& pass);

  const Finished finished_;
  std::weak_ptr<RunningPass> self_;
  mutable Mutex mutex_;
  Current current_ LOCKSTEP_GUARDED_BY(mutex_);
  Current evaluated_
      LOCKSTEP_GUARDED_BY(mutex_);  // becomes the current one when backward reaches its outputs
  bool begun_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::ddp
