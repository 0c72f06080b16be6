// The parameters and buffers of a module, as data parallelism sees them, and what all ranks must have in
// common. Internal. Thread safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/tensor/process_group.h"

namespace lockstep::ddp {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Each tensor once, under its first name, without those that are ignored.
NamedTensors without_repeats(NamedTensors tensors, const std::vector<std::string>& ignored);

// Throws on every rank, with the first difference to rank 0 that any rank has: another number of parameters,
// or one of another name, shape, strides, type or requires_grad; or `settings` that differ.
void check_same_on_all_ranks(const NamedTensors& parameters, const std::string& settings,
                             const tensor::ProcessGroup& group);

// Rank 0's values, on every rank. Many tensors are one operation, of some MiB at a time. Version counters
// stay as they are: what autograd has saved is not taken for changed, as in torch.
void broadcast_from_first(const std::vector<at::Tensor>& tensors, const tensor::ProcessGroup& group);

}  // namespace lockstep::ddp
