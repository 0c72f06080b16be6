#include "lockstep/ddp/unregistered.h"

#include <c10/util/Type.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <string>
#include <unordered_set>

#include "lockstep/base/text.h"
#include "lockstep/ddp/logger.h"
#include "lockstep/tensor/groups.h"
#include "lockstep/tensor/operation.h"

namespace lockstep::ddp {
namespace {

using torch::autograd::Node;

// A walk from outputs to leaves that enters no node twice, and none that it was told to leave out.
class Walk {
 public:
  void leave_out(const Node* node) { seen_.insert(node); }
  void leave_out(const at::Tensor& tensor) { seen_.insert(node_of(tensor)); }
  void enter(const at::Tensor& tensor) { enter(node_of(tensor)); }
  void enter(const Node* node) {
    if (node != nullptr && seen_.insert(node).second) left_.push_back(node);
  }
  // Null at the end.
  const Node* next() {
    if (left_.empty()) return nullptr;
    const Node* const node = left_.back();
    left_.pop_back();
    for (const torch::autograd::Edge& edge : node->next_edges()) enter(edge.function.get());
    return node;
  }

 private:
  static const Node* node_of(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.requires_grad()) return nullptr;
    return torch::autograd::impl::gradient_edge(tensor).function.get();
  }

  std::unordered_set<const Node*> seen_;
  std::vector<const Node*> left_;
};

std::string text_of(const at::Tensor& tensor) {
  return cat(c10::toString(tensor.scalar_type()), " of shape ", tensor::shape_text(tensor));
}

}  // namespace

void UnregisteredSearch::leave_out(const std::type_info& type) {
  done_ = true;
  kLog.warn(
      cat("rank ", tensor::get_rank(),
          ": DistributedDataParallel: it is not checked whether forward uses tensors that were never "
          "registered, because it takes a ",
          c10::demangle(type.name()),
          ", which is not looked into. Specialise lockstep::ddp::OutputTensors for that type, and it is."));
}

void UnregisteredSearch::look(std::span<const at::Tensor> outputs, const NamedTensors& all,
                              Gradients& gradients) {
  if (done_ || !inputs_) return;
  done_ = true;
  Walk walk;
  for (const at::Tensor& input : *inputs_) walk.leave_out(input);
  inputs_.reset();
  std::unordered_set<const c10::TensorImpl*> registered;
  for (const auto& [name, parameter] : all) registered.insert(parameter.unsafeGetTensorImpl());
  for (std::size_t i = 0; i < gradients.size(); ++i) walk.leave_out(gradients.slot(i).accumulator());
  for (const at::Tensor& output : outputs) walk.enter(output);
  std::vector<std::string> found;
  while (const Node* const node = walk.next()) {
    const auto* const leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node);
    if (leaf == nullptr || !leaf->variable.defined()) continue;
    if (!registered.contains(leaf->variable.unsafeGetTensorImpl())) found.push_back(text_of(leaf->variable));
  }
  if (found.empty()) return;
  const bool one = found.size() == 1;
  kLog.warn(cat("rank ", tensor::get_rank(), ": DistributedDataParallel: forward uses ", found.size(),
                one ? " tensor that needs a gradient, but is" : " tensors that need gradients, but are",
                " no parameter of the module: ", base::join(found, "; "),
                ". Such a gradient is not reduced: every rank keeps its own, and the replicas drift apart. "
                "Register the tensor with register_parameter() and wrap the module again; one that belongs "
                "to somebody else can be an argument of forward."));
}

}  // namespace lockstep::ddp
