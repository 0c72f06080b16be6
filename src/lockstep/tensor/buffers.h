// The bytes of the tensors of one operation. Internal.
//
// A tensor whose memory is one plain array in its own order is used where it lies. Any other (strides, a lazy
// conjugate or negation) is staged: read from, or written to, a plain copy.
//
// Thread safety: one thread at a time, but for finish(), which any number of threads may call.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <mutex>
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

  // A tensor that is written by other means.
  void note_written(const at::Tensor& tensor) { written_.push_back(tensor); }

  bool has_staged_outputs() const { return !staged_.empty(); }
  // Writes staged outputs to where they belong, when the operation has ended well. The first call does it;
  // all return when it is done.
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
  std::once_flag finished_;
};

}  // namespace lockstep::tensor
