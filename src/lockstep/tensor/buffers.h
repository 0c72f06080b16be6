// The bytes of the tensors of one operation. Internal.
//
// A tensor whose memory is one plain array in its own order is used where it lies. Any other (strides, a lazy
// conjugate or negation) is staged: read from, or written to, a plain copy.
//
// Thread safety: one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <vector>

#include "lockstep/base/bytes.h"

namespace lockstep::tensor {

class Buffers {
 public:
  // The tensor's elements, for reading. The view lives as long as this.
  ByteView input(const at::Tensor& tensor);
  // For writing; what is there before is of no interest.
  ByteSpan output(const at::Tensor& tensor);
  // For reading and writing.
  ByteSpan in_place(const at::Tensor& tensor);

  // Writes staged outputs to where they belong. Once, when the operation has ended well.
  void finish();
  // Every tensor that is written, in the order in which they came.
  std::vector<at::Tensor> written() const { return {written_.begin(), written_.end()}; }

 private:
  struct Staged {
    at::Tensor target;
    at::Tensor copy;
  };
  static bool is_plain(const at::Tensor& tensor);

  c10::SmallVector<at::Tensor, 2> kept_;
  c10::SmallVector<at::Tensor, 2> written_;
  std::vector<Staged> staged_;
};

}  // namespace lockstep::tensor
