// Whether tensors share memory. Internal.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <utility>

namespace lockstep::tensor {

// Whether two of the tensor's own elements are one place, as after expand().
bool overlaps_itself(const at::Tensor& tensor);

// Whether an element of `a` shares a byte with one of `b`. Exact: the columns of one matrix do not. Takes
// time for each element only where the ranges of two tensors of different layouts cross and one has gaps.
bool overlap(const at::Tensor& a, const at::Tensor& b);

// The places in the list of two tensors that share memory, of which at least one is among the `written`.
std::optional<std::pair<std::size_t, std::size_t>> find_overlap(
    std::span<const at::Tensor* const> tensors, const std::function<bool(std::size_t)>& written);

}  // namespace lockstep::tensor
