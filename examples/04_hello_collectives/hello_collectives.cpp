// 04: torch.distributed's collectives on tensors, one after the other; rank 0 tells what came of them.
//
// Run:
//   lockstep run --nproc 3 build/release/examples/04_hello_collectives
//
// Prints what is in expected_output.txt. The same program runs on several hosts, and under mpirun, srun and
// torchrun; alone, it is a world of one.
//
// A project of its own needs find_package(Lockstep REQUIRED COMPONENTS torch) and
// target_link_libraries(... Lockstep::torch). <lockstep/lockstep.h> has all of these headers, and all of
// torch; it takes the compiler ten seconds.

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/groups.h"
#include "lockstep/tensor/init.h"
#include "lockstep/tensor/messages.h"

namespace {

using lockstep::ReduceOp;

// "3 3 4", on rank 0.
void tell(const std::string& what, const at::Tensor& tensor) {
  if (lockstep::get_rank() != 0) return;
  std::ostringstream line;
  line << what << ":";
  const at::Tensor flat = tensor.flatten();
  for (std::int64_t i = 0; i < flat.numel(); ++i) line << " " << flat[i].item<double>();
  std::cout << line.str() + "\n";
}

void reductions(int rank, int n) {
  at::Tensor tensor = at::full({2}, rank + 1.0);
  lockstep::all_reduce(tensor);  // a sum, unless it is said otherwise
  tell("all_reduce, sum", tensor);

  tensor.fill_(rank + 1.0);
  lockstep::all_reduce(tensor, {.op = ReduceOp::kAvg});
  tell("all_reduce, average", tensor);

  tensor.fill_(rank + 1.0);
  lockstep::reduce(tensor, {.dst = 0, .op = ReduceOp::kMax});
  tell("reduce to rank 0, maximum", tensor);

  at::Tensor part = at::empty({1}, at::kDouble);
  lockstep::reduce_scatter_single(part, at::arange(n, at::kDouble));
  lockstep::all_reduce(part);
  tell("reduce_scatter_single, then the parts added up", part);
}

void copies(int rank, int n) {
  at::Tensor tensor = at::full({2}, rank);
  lockstep::broadcast(tensor, {.src = n - 1});
  tell("broadcast from the last rank", tensor);

  at::Tensor all = at::empty({n, 2}, at::kLong);
  lockstep::all_gather_single(all, at::full({2}, rank));
  tell("all_gather_single", all);

  // Each rank has its own list of tensors, in the order of ranks; only the root's is used.
  std::vector<at::Tensor> list;
  if (rank == 0) {
    for (int r = 0; r < n; ++r) list.push_back(at::full({r + 1}, 10 * r));
  }
  at::Tensor own = at::empty({rank + 1}, at::kLong);
  lockstep::scatter(own, list);
  own.add_(1);
  lockstep::gather(own, list);
  if (rank == 0) tell("scattered, changed, and the last of those gathered", list.back());

  at::Tensor swapped = at::empty({n}, at::kLong);
  lockstep::all_to_all_single(swapped, at::arange(n, at::kLong).add(10 * rank));
  tell("all_to_all_single", swapped);
}

void without_waiting(int rank, int n) {
  const at::Tensor tensor = at::full({1}, rank + 1.0);
  const lockstep::WorkHandle work = lockstep::all_reduce(tensor, {.async_op = true});
  // What does not touch the tensor goes here.
  work.wait();
  tell("all_reduce, asynchronous", tensor);

  // Round the ring: to the next, from the one before.
  const at::Tensor token = at::full({1}, rank);
  const at::Tensor arrived = at::empty({1}, at::kLong);
  const auto works =
      lockstep::batch_isend_irecv({lockstep::P2POp::isend(token, {.dst = (rank + 1) % n}),
                                   lockstep::P2POp::irecv(arrived, {.src = (rank + n - 1) % n})});
  for (const lockstep::WorkHandle& message : works) message.wait();
  tell("a message from the rank before", arrived);
}

// A wrong call is refused before anything is sent, and the group lives on.
void a_mistake(int rank, int n) {
  try {
    lockstep::broadcast(at::full({1}, rank), {.src = n});
  } catch (const lockstep::InvalidArgument& error) {
    if (rank == 0) std::cout << error.what() << "\n";
  }
}

}  // namespace

int main() {
  const auto world = lockstep::init_process_group();
  const int rank = lockstep::get_rank();
  const int n = lockstep::get_world_size();
  if (rank == 0) std::cout << "hello from " << n << " ranks\n";
  reductions(rank, n);
  copies(rank, n);
  without_waiting(rank, n);
  a_mistake(rank, n);
  lockstep::barrier();
}  // leaves the world, whatever the others do
