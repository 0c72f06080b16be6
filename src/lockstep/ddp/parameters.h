// The parameters and buffers of a module, as data parallelism sees them, and what all ranks must have in
// common. Internal. Thread safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/tensor/process_group.h"
#include "lockstep/tensor/work_handle.h"

namespace lockstep::ddp {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Each tensor once, under its first name, without those that are ignored: sorted names.
NamedTensors without_repeats(NamedTensors tensors, const std::vector<std::string>& ignored);

// Why a tensor cannot become rank 0's, and what to do, in words behind its name; "" if it can.
std::string why_not_shared(const at::Tensor& tensor);

// What all ranks must have in common.
struct ModelParts {
  NamedTensors parameters;
  NamedTensors buffers;  // that are rank 0's, at construction or before each forward
  // What is planned for the gradient of each parameter, in words: a module or a GradientSlot decides it too.
  std::vector<std::pair<std::string, std::string>> gradients;
  std::string settings;
};

// Throws on every rank, with the first difference to rank 0 that any rank has: a parameter or buffer more or
// less, or one of another name, shape, strides, type or requires_grad; a gradient that is planned otherwise;
// or settings that differ. Before that, with what another rank has refused.
// Gives a number that is this model's alone among all that were compared in the group, the same on all ranks.
std::int64_t check_same_on_all_ranks(const ModelParts& own, const tensor::ProcessGroup& group);
// Instead of it, on a rank that refuses: the others throw, with its reason. Waits for them, and does not
// throw, whatever they do.
void tell_refusal(std::string_view why, const tensor::ProcessGroup& group);

// The parameters of a module as they were when it was wrapped. Keeps them alive: another would else get the
// identity of one that is gone.
class ParameterSnapshot {
 public:
  // Those that need gradients.
  explicit ParameterSnapshot(const NamedTensors& parameters);
  // What is not as it was, in words and with the name; "" if nothing is. `now`: all that the module has.
  std::string difference_to(const NamedTensors& now) const;

 private:
  struct Known {
    std::string name;
    at::Tensor tensor;
    c10::ScalarType dtype;
    c10::Device device;
    std::vector<std::int64_t> sizes;
  };
  std::vector<Known> known_;
};

// Rank 0's order of the numbers from 0, on every rank. It is on its way when this is made, and waited for
// when it is asked for: DistError if it never comes.
class OrderOfFirst {
 public:
  OrderOfFirst(const std::vector<std::size_t>& own, const tensor::ProcessGroup& group);
  std::vector<std::size_t> get() const;

 private:
  at::Tensor order_;
  tensor::WorkHandle work_;
};

// Rank 0's values, on every rank. Many tensors are one operation, of some MiB at a time. Version counters
// stay as they are: what autograd has saved is not taken for changed, as in torch. `purpose`:
// tensor/purpose.h.
void broadcast_from_first(const NamedTensors& tensors, const tensor::ProcessGroup& group,
                          std::uint64_t purpose);

}  // namespace lockstep::ddp
