// Several all_reduce that depend on each other, as one operation of the group: each round may need what the
// one before it has brought, and nothing else of the group comes between them.
//
//   // The mean of a matrix, as the product of two thin ones.
//   auto work = lockstep::all_reduce_rounds(
//       p.copy_(matrix.mm(q)),
//       {[=] { orthogonalize(p); return q.copy_(matrix.t().mm(p)); }},
//       [=] { matrix.copy_(p.mm(q.t())); }, {.op = ReduceOp::kAvg, .async_op = true});
//
// What is computed between the rounds runs where the operation does: with async_op on a thread of the group,
// or on that of whoever waits for it first; without a graph, and with the caller's settings of torch.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/work_handle.h"

namespace lockstep::tensor {

// Reduces `first`, then the tensor that each of `next` gives, in place, and calls `finish` (which may be
// empty) at last. All ranks have as many rounds. Tensors are contiguous, and all of the first one's device.
// Errors: as all_reduce() for `first`. What `next` throws, or a tensor that does not fit, ends the group: the
// other ranks get RemoteError with its text. What `finish` throws is this rank's alone. `next` and `finish`
// must not call a collective of the group.
WorkHandle all_reduce_rounds(const at::Tensor& first, std::vector<std::function<at::Tensor()>> next,
                             std::function<void()> finish, const ReduceOptions& options = {});

}  // namespace lockstep::tensor

namespace lockstep {
using tensor::all_reduce_rounds;
}
