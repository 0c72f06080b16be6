// Many collectives of one kind as one operation: torch's coalescing manager.
//
//   lockstep::Coalescing together({.op = ReduceOp::kAvg});
//   for (const at::Tensor& gradient : gradients) together.all_reduce(gradient);
//   together.launch();
//
// What is added is checked at once and sent by launch(), as one operation. All must be of one kind and one
// number type: another is InvalidArgument, and what was added before stays. What is never launched is not
// sent. The in-place forms of collectives.h work here too. Thread safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "lockstep/collective/fingerprint.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/work_handle.h"

namespace lockstep::tensor {

class Coalescing {
 public:
  explicit Coalescing(const ReduceOptions& options = {});
  ~Coalescing();
  Coalescing(const Coalescing&) = delete;
  Coalescing& operator=(const Coalescing&) = delete;

  void all_reduce(const at::Tensor& tensor);
  void all_gather_single(const at::Tensor& output, const at::Tensor& input);
  void reduce_scatter_single(const at::Tensor& output, const at::Tensor& input);

  // Sends what was added, and is empty afterwards. Nothing added: nothing is sent.
  WorkHandle launch();

 private:
  class Batch;
  Batch& batch_for(collective::OpKind kind);

  const ReduceOptions options_;
  std::unique_ptr<Batch> batch_;  // nothing: nothing was added
};

}  // namespace lockstep::tensor

namespace lockstep {
using tensor::Coalescing;
}
