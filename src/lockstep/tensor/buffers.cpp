#include "lockstep/tensor/buffers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

namespace lockstep::tensor {
namespace {

ByteView bytes_of_plain(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}
ByteSpan writable_bytes_of_plain(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

}  // namespace

bool Buffers::is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

ByteView Buffers::input(const at::Tensor& tensor) {
  if (is_plain(tensor)) {
    kept_.push_back(tensor);
  } else {
    const at::NoGradGuard no_grad;
    kept_.push_back(tensor.resolve_conj().resolve_neg().contiguous());
  }
  return bytes_of_plain(kept_.back());
}

ByteSpan Buffers::output(const at::Tensor& tensor) {
  written_.push_back(tensor);
  if (is_plain(tensor)) return writable_bytes_of_plain(tensor);
  const at::NoGradGuard no_grad;
  staged_.push_back(
      {tensor, at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous))});
  return writable_bytes_of_plain(staged_.back().copy);
}

ByteSpan Buffers::in_place(const at::Tensor& tensor) {
  const ByteSpan bytes = output(tensor);
  if (!is_plain(tensor)) {
    const at::NoGradGuard no_grad;
    staged_.back().copy.copy_(tensor);
  }
  return bytes;
}

void Buffers::finish() {
  if (staged_.empty()) return;
  std::call_once(finished_, [this] {
    const at::NoGradGuard no_grad;
    for (const Staged& staged : staged_) staged.target.copy_(staged.copy);
  });
}

}  // namespace lockstep::tensor
