// One call of collective_parity.py, as those who run it on our side see it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/tensor/process_group.h"
#include "lockstep/tensor/reduction.h"

namespace lockstep {

struct ParityCall {
  std::string name;
  int number;
  ProcessGroup group;
  std::vector<int> members;  // global ranks, by rank in the group
  int rank;                  // in the group
  int size;
  int root;  // a global rank
  // The same as the script gives it: one of the two.
  std::optional<int> global_root;
  std::optional<int> group_root;
  ReduceOp op;
  bool async_op;
  std::vector<std::int64_t> sizes;
  // The numbers of this rank, and zeros of the same type and layout.
  std::function<at::Tensor(int part, const std::vector<std::int64_t>& sizes)> make;
  std::function<at::Tensor(const std::vector<std::int64_t>& sizes)> empty;

  bool is_root() const { return members[static_cast<std::size_t>(rank)] == root; }
  // Global ranks.
  int next() const { return members[static_cast<std::size_t>((rank + 1) % size)]; }
  int previous() const { return members[static_cast<std::size_t>((rank + size - 1) % size)]; }
};

}  // namespace lockstep
