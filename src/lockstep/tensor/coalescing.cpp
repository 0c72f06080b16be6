#include "lockstep/tensor/coalescing.h"

#include <deque>
#include <vector>

#include "lockstep/tensor/operation.h"
#include "lockstep/tensor/shapes.h"

namespace lockstep::tensor {

class Coalescing::Batch {
 public:
  Batch(OpKind kind, const ReduceOptions& options) : kind_(kind), op_("coalescing", options.group) {}

  // What was refused does not decide what the batch is of.
  bool is_empty_of_another(OpKind kind) const { return added_ == 0 && kind != kind_; }
  // `name` adds tensors; one that is refused leaves no trace.
  template <typename Name>
  void add(OpKind kind, const Name& name) {
    if (!op_.member()) return;
    if (kind != kind_) {
      op_.refuse("it has ", collective::name_of(kind_), ", so ", collective::name_of(kind),
                 " cannot be added.");
    }
    const std::size_t before = op_.count();
    const std::size_t in_place_before = in_place_.size();
    try {
      name(op_, static_cast<int>(added_));
      ++added_;
    } catch (...) {
      op_.truncate(before);
      in_place_.resize(in_place_before);
      throw;
    }
  }
  // A handle that lives until the launch.
  const at::Tensor& keep(const at::Tensor& tensor) { return tensors_.emplace_back(tensor); }
  // The same for the input of a call that may be in place: then what it is at the launch is copied.
  const at::Tensor& keep_input(const at::Tensor& input, const at::Tensor& whole, const at::Tensor& part) {
    at::Tensor& kept = tensors_.emplace_back(input);
    if (is_own_part(op_, whole, part)) in_place_.push_back(&kept);
    return kept;
  }
  WorkHandle launch(const ReduceOptions& options) {
    if (!op_.member() || added_ == 0) return {};
    for (at::Tensor* const input : in_place_) *input = input->detach().clone();
    return op_.issue(kind_, 0, options.op, {options.async_op, options.timeout});
  }

 private:
  const OpKind kind_;
  Operation op_;
  std::deque<at::Tensor> tensors_;
  std::vector<at::Tensor*> in_place_;  // of them
  std::size_t added_ = 0;
};

Coalescing::Coalescing(const ReduceOptions& options) : options_(options) {}
Coalescing::~Coalescing() = default;

Coalescing::Batch& Coalescing::batch_for(OpKind kind) {
  if (!batch_ || batch_->is_empty_of_another(kind)) batch_ = std::make_unique<Batch>(kind, options_);
  return *batch_;
}

void Coalescing::all_reduce(const at::Tensor& tensor) {
  Batch& batch = batch_for(OpKind::kAllReduce);
  batch.add(OpKind::kAllReduce, [&](Operation& op, int index) {
    op.in_place(batch.keep(tensor), {"tensor", index});
  });
}

void Coalescing::all_gather_single(const at::Tensor& output, const at::Tensor& input) {
  Batch& batch = batch_for(OpKind::kAllGather);
  batch.add(OpKind::kAllGather, [&](Operation& op, int index) {
    op.check_tensor(input, {"input", index});
    op.check_tensor(output, {"output", index});
    op.input(batch.keep_input(input, output, input), {"input", index});
    op.output(batch.keep(output), {"output", index});
    op.cut(op.size());
    check_whole(op, output, "output", input, "input");
  });
}

void Coalescing::reduce_scatter_single(const at::Tensor& output, const at::Tensor& input) {
  Batch& batch = batch_for(OpKind::kReduceScatter);
  batch.add(OpKind::kReduceScatter, [&](Operation& op, int index) {
    op.check_tensor(output, {"output", index});
    op.check_tensor(input, {"input", index});
    op.output(batch.keep(output), {"output", index});
    op.input(batch.keep_input(input, input, output), {"input", index});
    op.cut(op.size());
    check_whole(op, input, "input", output, "output");
  });
}

WorkHandle Coalescing::launch() {
  if (!batch_) return {};
  const std::unique_ptr<Batch> batch = std::move(batch_);
  return batch->launch(options_);
}

}  // namespace lockstep::tensor
