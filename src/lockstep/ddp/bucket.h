// A GradBucket is some gradients that travel together: one flat buffer, and a view of it for each of them.
//
// It is also what a communication hook is given (comm_hook.h). The buffer lies on the symmetric heap where
// there is one, so that the other ranks of the host fold it where it lies. Views are no views to autograd:
// an optimizer may zero, detach or replace them.
// The bucket of a sparse gradient has no buffer of its own: the gradient is its buffer.
//
// Thread safety: views of different gradients may be filled at once; all else by one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/collective/copy_choice.h"
#include "lockstep/tensor/process_group.h"

namespace lockstep::ddp {

// Those that autograd gives the gradient of a parameter: its own, if that leaves no gaps and nothing twice;
// else contiguous ones.
std::vector<std::int64_t> gradient_strides(const at::Tensor& local);

class GradBucket {
 public:
  // `locals`: what stands for each parameter; their types and devices are equal. `strides`: of each gradient.
  GradBucket(std::size_t index, std::vector<at::Tensor> locals,
             const std::vector<std::vector<std::int64_t>>& strides);
  static GradBucket for_sparse(std::size_t index, const at::Tensor& local);

  // Its place in the order in which buckets travel; is_last() is said of the one that travels last.
  std::size_t index() const { return index_; }
  bool is_last() const { return last_; }
  // All gradients, one behind the other.
  const at::Tensor& buffer() const { return buffer_; }
  // What the gradients become is in `buffer`, which must be of the same type and size. Lets a hook leave the
  // bucket's own memory alone.
  void set_buffer(const at::Tensor& buffer) { buffer_ = buffer; }
  // The model's group, whose mean the gradients are to become.
  const tensor::ProcessGroup& group() const { return group_; }
  // What the default hook says its reduction is for, so that ranks in the passes of different models hear it.
  std::uint64_t purpose() const { return purpose_; }
  // By place: views of the buffer, and the parameters that they belong to.
  std::vector<at::Tensor> gradients() const;
  const std::vector<at::Tensor>& parameters() const { return locals_; }

  // Internal, for BackwardPass.
  bool sparse() const { return sparse_; }
  void set_last(bool last) { last_ = last; }
  void set_group(const tensor::ProcessGroup& group, std::uint64_t purpose) {
    group_ = group;
    purpose_ = purpose;
  }
  const at::Tensor& view(std::size_t place) const { return views_[place]; }
  // Copies a gradient of the view's shape and type to its place, as `choice` says.
  void fill(std::size_t place, const at::Tensor& gradient, collective::CopyChoice& choice) const;
  // Whether `gradient` is the view itself, or the same elements of the same memory.
  bool holds(std::size_t place, const at::Tensor& gradient) const;
  // Brings home what a hook has set_buffer(), or made of buffer() in place. Gives why not, if it does not
  // fit; then nothing has changed.
  std::string settle();
  // Forgets what a sparse gradient has left.
  void clear();

 private:
  GradBucket(std::size_t index, std::vector<at::Tensor> locals, bool sparse)
      : index_(index), locals_(std::move(locals)), sparse_(sparse) {}
  // Whether what a hook has left as the buffer is the bucket's own memory.
  bool is_at_home() const;

  std::size_t index_;
  std::vector<at::Tensor> locals_;
  bool sparse_;
  bool last_ = false;
  tensor::ProcessGroup group_;
  std::uint64_t purpose_ = 0;
  at::Tensor home_;    // undefined for a sparse gradient; given to nobody, who might resize it
  at::Tensor buffer_;  // that memory, but for what a hook has made of it
  std::vector<at::Tensor> views_;
};

}  // namespace lockstep::ddp

namespace lockstep {
using ddp::GradBucket;
}
