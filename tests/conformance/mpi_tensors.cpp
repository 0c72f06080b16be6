// A rank of torch.distributed's calls on tensors over MPI: mpirun starts it. Says what is wrong and ends with
// 1, or ends with 0.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/tensor/backend_source.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/groups.h"
#include "lockstep/tensor/init.h"
#include "lockstep/tensor/messages.h"

namespace lockstep {
namespace {

void expect(bool right, const std::string& what) {
  if (!right) throw std::runtime_error("wrong: " + what);
}
bool is(const at::Tensor& tensor, double value) { return tensor.eq(value).all().item<bool>(); }
at::Tensor numbers(std::int64_t count, double value) { return at::full({count}, value, at::kDouble); }

void check_collectives() {
  const int n = get_world_size();
  const int own = get_rank();
  const double sum = n * (n + 1) / 2.0;
  at::Tensor tensor = numbers(1000, own + 1);
  all_reduce(tensor);
  expect(is(tensor, sum), "all_reduce");
  tensor = at::full({10, 10}, own + 1, at::kBFloat16).t();  // staged
  all_reduce(tensor, {.op = ReduceOp::kMax, .async_op = true}).wait();
  expect(is(tensor, n), "all_reduce, max, asynchronous");
  tensor = numbers(5, own);
  broadcast(tensor, {.src = n - 1});
  expect(is(tensor, n - 1), "broadcast");
  tensor = numbers(5, own + 1);
  reduce(tensor, {.dst = 0});
  expect(is(tensor, own == 0 ? sum : own + 1), "reduce");

  std::vector<at::Tensor> parts;
  for (int r = 0; r < n; ++r) parts.push_back(at::empty({r + 1}, at::kDouble));
  all_gather(parts, numbers(own + 1, own));
  for (int r = 0; r < n; ++r) expect(is(parts[static_cast<std::size_t>(r)], r), "all_gather of uneven sizes");
  const at::Tensor whole = at::empty({2 * n}, at::kLong);
  all_gather_single(whole, at::full({2}, own, at::kLong));
  expect(whole.equal(at::arange(n, at::kLong).repeat_interleave(2)), "all_gather_single");
  const at::Tensor mine = at::empty({2}, at::kLong);
  reduce_scatter_single(mine, whole);
  expect(is(mine, n * own), "reduce_scatter_single");
  const at::Tensor swapped = at::empty({n}, at::kLong);
  all_to_all_single(swapped, at::full({n}, own, at::kLong));
  expect(swapped.equal(at::arange(n, at::kLong)), "all_to_all_single");
  barrier();
  monitored_barrier();
}

void check_messages() {
  const int n = get_world_size();
  const int next = (get_rank() + 1) % n;
  const int previous = (get_rank() + n - 1) % n;
  const at::Tensor got = at::empty({7}, at::kFloat);
  const WorkHandle received = irecv(got, {.src = previous, .tag = 5});
  const WorkHandle sent = isend(at::full({7}, get_rank(), at::kFloat), {.dst = next, .tag = 5});
  received.wait();
  sent.wait();
  expect(is(got, previous), "isend and irecv");
}

void check_groups() {
  const int n = get_world_size();
  const ProcessGroup others = new_group({n - 1, 0});
  expect(others.is_member() == (get_rank() == 0 || get_rank() == n - 1), "membership");
  if (others.is_member()) {
    const at::Tensor tensor = numbers(3, get_rank());
    all_reduce(tensor, {.group = others});
    expect(is(tensor, n - 1), "all_reduce in a group");
    expect(get_backend(others) == "mpi", "get_backend of a group");
  }
  const ProcessGroup half = split_group(SplitBy{.color = get_rank() % 2, .key = -get_rank()});
  expect(half.ranks().back() == get_rank() % 2, "split_group");
  expect(get_node_local_rank() == get_rank(), "get_node_local_rank");
  try {
    (void)shrink_group({n - 1});
    expect(false, "shrink_group over MPI");
  } catch (const Unsupported& error) {
    expect(std::string(error.what()).find("shrink_group: the backend \"mpi\"") != std::string::npos,
           error.what());
  }
  try {
    all_reduce(numbers(1, 1), {.op = ReduceOp::kBand});
    expect(false, "band of doubles");
  } catch (const InvalidArgument&) {
  }
}

void run() {
  expect(is_mpi_available() && is_backend_available("mpi") && !is_nccl_available(), "is_mpi_available");
  for (int round = 0; round < 2; ++round) {
    // A rank that is given is ignored; MPI knows better.
    const auto world = init_process_group({.backend = "mpi", .rank = 0});
    expect(get_backend() == "mpi" && get_backend_config() == "cpu:mpi", "get_backend");
    check_collectives();
    check_messages();
    check_groups();
  }
}

}  // namespace
}  // namespace lockstep

int main() {
  try {
    lockstep::run();
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
  return 0;
}
