// all_reduce of sparse COO tensors. Internal.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/operation.h"

namespace lockstep::tensor {

// `tensor` becomes the sum over all ranks, coalesced. Three all_gathers, as rounds of one operation: what
// each rank has, its indices, its values; then every rank adds them in rank order, so that the bits are the
// same everywhere. A tensor without elements takes the sparse dimensions of those that have some, so that the
// result has the same layout everywhere, too.
WorkHandle all_reduce_sparse(Operation& op, const at::Tensor& tensor, const ReduceOptions& options);

}  // namespace lockstep::tensor
