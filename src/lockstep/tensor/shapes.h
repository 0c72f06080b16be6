// Shapes that must fit each other. Internal.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "lockstep/tensor/operation.h"

namespace lockstep::tensor {

// What is wrong with a shape, as a sentence: a size below zero, or more bytes than a number can say. Empty if
// nothing is.
std::string shape_problem(at::IntArrayRef shape, std::int64_t element_size);

// What a rank gives to itself must fit what it takes from itself. Throws.
void check_own(const Operation& op, const at::Tensor& a, const Argument& a_name, const at::Tensor& b,
               const Argument& b_name);

// `whole` must be the parts of all ranks, each as `part`: concatenated, stacked or flat. Throws.
void check_whole(const Operation& op, const at::Tensor& whole, const char* whole_name, const at::Tensor& part,
                 const char* part_name);

// Whether the call is in place: `part` is exactly this rank's part of `whole`, as in
// all_gather_single(whole, part).
bool is_own_part(const Operation& op, const at::Tensor& whole, const at::Tensor& part);
// `input`, or a copy of it where the call is in place. Any other overlap is found later, and refused.
at::Tensor apart(const Operation& op, const at::Tensor& whole, const at::Tensor& part,
                 const at::Tensor& input);

}  // namespace lockstep::tensor
