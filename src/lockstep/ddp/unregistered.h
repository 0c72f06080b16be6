// UnregisteredSearch looks for tensors that forward uses and that need gradients, but are no parameters of
// the module, such as a member that was never registered. Nobody reduces their gradients, so the replicas
// drift apart without a word.
//
// It looks once, after the first synchronised forward, in the graph between its inputs and its outputs, and
// warns: a tensor may be no parameter on purpose. Not found is what only reentrant checkpoints use.
// Thread safety: that of forward. Internal.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/ddp/gradients.h"
#include "lockstep/ddp/parameters.h"

namespace lockstep::ddp {

class UnregisteredSearch {
 public:
  bool is_due() const { return !done_; }
  bool has_inputs() const { return inputs_.has_value(); }
  // What the next forward was given; the search needs them, because behind them the graph is not the
  // module's.
  void set_inputs(std::vector<at::Tensor> inputs) { inputs_ = std::move(inputs); }
  // Warns instead that nothing is looked for, because forward takes a T that is not looked into.
  void leave_out(const std::type_info& type);
  // After that forward; `all`: every parameter of the module, also those that are ignored.
  void look(std::span<const at::Tensor> outputs, const NamedTensors& all, Gradients& gradients);

 private:
  bool done_ = false;
  std::optional<std::vector<at::Tensor>> inputs_;  // nothing: not known
};

}  // namespace lockstep::ddp
