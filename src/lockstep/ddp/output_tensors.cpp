#include "lockstep/ddp/output_tensors.h"

#include <ATen/core/ivalue_inl.h>
#include <torch/nn/modules/adaptive.h>
#include <torch/nn/utils/rnn.h>

#include <algorithm>
#include <unordered_set>

namespace lockstep::ddp {

// Not by IValue::getSubValues(), which takes two tensors of one storage for the same.
void OutputTensors<c10::IValue>::visit(const c10::IValue& value, std::vector<at::Tensor>& found) {
  std::unordered_set<const c10::ivalue::Object*> seen;  // objects may refer to each other
  std::vector<c10::IValue> left{value};
  while (!left.empty()) {
    const c10::IValue next = std::move(left.back());
    left.pop_back();
    const std::size_t rest = left.size();
    if (next.isTensor()) {
      found.push_back(next.toTensor());
    } else if (next.isTuple()) {
      for (const c10::IValue& each : next.toTupleRef().elements()) left.push_back(each);
    } else if (next.isList()) {
      for (const c10::IValue& each : next.toListRef()) left.push_back(each);
    } else if (next.isGenericDict()) {
      for (const auto& item : next.toGenericDict()) left.push_back(item.value());
    } else if (next.isObject() && seen.insert(&next.toObjectRef()).second) {
      for (const c10::IValue& each : next.toObjectRef().slots()) left.push_back(each);
    }
    std::reverse(left.begin() + static_cast<std::ptrdiff_t>(rest), left.end());  // in their order
  }
}

void OutputTensors<torch::nn::utils::rnn::PackedSequence>::visit(
    const torch::nn::utils::rnn::PackedSequence& value, std::vector<at::Tensor>& found) {
  find_tensors(value.data(), found);
}

void OutputTensors<torch::nn::ASMoutput>::visit(const torch::nn::ASMoutput& value,
                                                std::vector<at::Tensor>& found) {
  find_tensors(value.output, found);
}

}  // namespace lockstep::ddp
