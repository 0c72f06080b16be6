// Resident tensors lie on the symmetric heap, where the other ranks of this host can reach them.
//
//   at::Tensor bucket = lockstep::empty_resident({1 << 20}, at::kFloat);
//   lockstep::all_reduce(bucket);            // folded where it lies: nothing is copied before or after
//
//   {
//     const lockstep::ResidentScope scope;   // every CPU tensor that this thread allocates is resident
//     model = std::make_shared<Net>();
//   }
//
// Collectives and messages take any tensor. One that is resident on all ranks of the host they use where it
// lies; where a copy is quicker, as for a few KiB, they make one all the same.
//
// Lifetime: that of any tensor, also beyond the scope and destroy_process_group(). After that, or in another
// world, it is plain memory: operations copy it. In a forked child it is the parent's memory, not a copy.
// Errors: empty_resident() and zeros_resident() throw OutOfResources when the heap, or the machine's memory,
// is full, and InvalidArgument before init_process_group() and for options that cannot be had.
// Thread safety: any thread; a ResidentScope belongs to the thread that made it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <memory>

namespace lockstep::tensor {

class Session;

at::Tensor empty_resident(at::IntArrayRef sizes, const at::TensorOptions& options = {});
at::Tensor zeros_resident(at::IntArrayRef sizes, const at::TensorOptions& options = {});
// Whether operations of the current world may use it where it lies.
bool is_resident(const at::Tensor& tensor);

// While it lives, what this thread allocates for CPU tensors is resident; other threads, torch's own among
// them, allocate as ever. Scopes nest. An allocation for which there is no room, or that comes after
// destroy_process_group(), is plain memory, and the scope logs one warning of it.
//
// The first scope of a process puts an allocator in front of torch's, which it asks when there is no scope;
// make that one before other threads allocate. InvalidArgument before init_process_group(), and where the
// program has since set another CPU allocator.
class ResidentScope {
 public:
  ResidentScope();
  ~ResidentScope();
  ResidentScope(const ResidentScope&) = delete;
  ResidentScope& operator=(const ResidentScope&) = delete;

  // Internal: for the allocator. The scope that this thread is in; nullptr if it is in none.
  static ResidentScope* current();
  // Nothing, after a warning, if there is no room.
  c10::DataPtr allocate(std::size_t size);

 private:
  const std::weak_ptr<Session>
      session_;  // the world goes when the program leaves it, not when the scope does
  ResidentScope* const outer_;
  bool warned_ = false;
};

}  // namespace lockstep::tensor

namespace lockstep {
using tensor::empty_resident;
using tensor::is_resident;
using tensor::ResidentScope;
using tensor::zeros_resident;
}  // namespace lockstep
