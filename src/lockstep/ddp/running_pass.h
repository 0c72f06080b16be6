// RunningPass is the backward pass that runs, or is to run next, and how autograd comes to it: by hooks on
// the outputs of forward and on gradients, and by callbacks at the end of its tasks.
//
// Every forward begins a pass, which takes the gradients of the next task of autograd. Forwards that come
// before it are of the same pass. So are the tasks that come to it until it is over, such as those that run
// inside: a pass ends with the last of them. When it is over, another task that comes through the outputs of
// any of its forwards is a pass of its own, with all gradients of that task: all that a synchronised forward
// leads to is reduced. Of a task that accumulates gradients and comes through none, the owner is told.
//
// What a step of the pass throws ends the group and the pass; so does an exception elsewhere in backward, and
// one that lets the outputs go before it. torch::autograd::grad() is not a backward pass: it accumulates
// nothing, so nothing is reduced. Nor is a backward() for other inputs than the model's parameters. Internal.
//
// Thread safety: any thread. Ownership: a part of what its passes work on, which hooks of the graph refer to
// weakly: see belong_to(). Backward through outputs that have outlived it is an error.
// Errors: ReductionError; DistError; what a communication hook throws.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/ddp/backward_pass.h"
#include "lockstep/tensor/process_group.h"

namespace lockstep::ddp {

class RunningPass final {
 public:
  // What its owner is told. The first two may communicate.
  struct Events {
    // A pass is about to be made: what passes work on may change. The n-th is the n-th on all ranks.
    std::function<void()> beginning;
    // A pass is finished, which is when all ranks are there, with the order in which its gradients became
    // final.
    std::function<void(const std::vector<std::size_t>& order)> finished;
    // Backward has accumulated these gradients and has not come through what a forward returned, though the
    // last forward was to be synchronised, or there was none. Until it has returned true.
    std::function<bool(const std::vector<std::size_t>& parameters)> astray;
  };
  enum class Mode : std::uint8_t {
    kTraining,
    // A rank may be alone: its pass begins with a backward through its own outputs, if there ever is one, and
    // outputs that an exception lets go are nothing to the others.
    kEvaluation,
    // It begins no pass: gradients stay this rank's own, unless a pass that was begun before waits for them.
    // The others hear of its exceptions.
    kAccumulating
  };

  explicit RunningPass(Events events) : events_(std::move(events)) {}

  // Once, first: who locks `self` keeps alive what it is a part of.
  void belong_to(const std::shared_ptr<RunningPass>& self) { self_ = self; }
  // After forward. `expected` is of no account in kAccumulating.
  void begin(const PassParts& parts, Expectation expected, std::span<const at::Tensor> outputs, Mode mode);
  // Instead, after a forward whose gradients are this rank's alone, if there are any.
  void stay_alone();
  // A gradient was accumulated.
  void accumulated(std::size_t parameter);
  // The pass is given up, and what comes through the outputs of earlier forwards is none.
  void forget_forwards();
  // The pass, if backward has come to it and it is not finished; then it is given up.
  std::shared_ptr<BackwardPass> take_unfinished();
  bool has_ever_begun() const;
  // Whether backward is in a pass now: also a hook, and what it calls.
  bool runs() const;

 private:
  struct Forward;
  struct Current {
    std::shared_ptr<const Forward> forward = {};  // shared with the hooks of its outputs
    std::shared_ptr<BackwardPass> pass = {};      // shared with the tasks of autograd
  };
  static Current pass_of(const std::shared_ptr<const Forward>& forward, const Expectation& expected);
  Current current() const;
  bool is_forgotten(const Forward& forward) const;
  Expectation expected_of(const Forward& forward) const;
  void make_pass_for(const std::shared_ptr<const Forward>& forward);
  void about_to_begin(const tensor::ProcessGroup& group) const;
  void backward_reached(const std::shared_ptr<const Forward>& forward);
  static void owner_is_gone(const Forward& forward);
  void watch_task(const std::shared_ptr<const Forward>& forward) const;
  void enter(Entry by);
  void leave(const Current& current, int task);
  void remember(std::size_t parameter);
  std::vector<std::size_t> remembered_from(int task);
  void take_remembered();
  void forget(int task);
  void unwound(const Forward& forward);
  void give_up();
  void or_end(const Current& current, const std::function<void()>& step);
  void drop(const std::shared_ptr<BackwardPass>& pass);

  // By task: gradients that it has accumulated while there was no pass, and before it came to any outputs, as
  // that of a parameter that the loss itself uses. Tasks inside have higher numbers than the one around them,
  // and leave theirs to it.
  using Early = std::map<int, std::vector<std::size_t>>;

  const Events events_;
  std::weak_ptr<RunningPass> self_;
  mutable Mutex mutex_;
  Current current_ LOCKSTEP_GUARDED_BY(mutex_);
  std::uint64_t era_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // forwards of another one are forgotten
  bool begun_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  Early early_ LOCKSTEP_GUARDED_BY(mutex_);
  // Since the last forward: gradients are this rank's own, and meant to be.
  bool is_alone_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool astray_was_told_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  // Of this era, as long as their graphs live, where each pass is another search.
  std::vector<std::weak_ptr<const Forward>> searched_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::ddp
