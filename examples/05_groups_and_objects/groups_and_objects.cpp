// 05: groups of some of the ranks, and C++ values that travel between them.
//
// Run:
//   lockstep run --nproc 3 build/release/examples/05_groups_and_objects
//
// Prints what is in expected_output.txt (the order of the lines differs).
//
// A project of its own needs find_package(Lockstep REQUIRED COMPONENTS torch) and
// target_link_libraries(... Lockstep::torch).

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include <cmath>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/groups.h"
#include "lockstep/tensor/init.h"
#include "lockstep/tensor/objects.h"

// What one rank has to report.
struct Report {
  std::string task;
  std::map<std::string, double> metrics;
  at::Tensor weights;
};
LOCKSTEP_OBJECT(Report, task, metrics, weights)  // the one line that makes it sendable

namespace {

// One write per line, so that the lines of several ranks never mix.
void say(const std::string& what) {
  std::cout << ("rank " + std::to_string(lockstep::get_rank()) + ": " + what + "\n") << std::flush;
}

int whole(const at::Tensor& tensor) { return tensor[0].item<int>(); }

void groups() {
  // Made by all ranks, as in torch, or by ranks 0 and 2 alone. Rank 1 gets a group that it is not in.
  const lockstep::ProcessGroup ends =
      lockstep::new_group({0, lockstep::get_world_size() - 1}, {.group_desc = "the ends"});
  if (ends.is_member()) {
    const at::Tensor tensor = at::full({1}, lockstep::get_rank() + 1);
    lockstep::all_reduce(tensor, {.group = ends});
    lockstep::broadcast(tensor, {.group_src = 0, .group = ends});  // the first of the group; .src is global
    say("in the group \"" + ends.description() + "\" this is rank " + std::to_string(ends.rank()) + " of " +
        std::to_string(ends.size()) + ", and the sum is " + std::to_string(whole(tensor)));
  } else {
    say("not in that group: its rank there is " + std::to_string(ends.rank()));
  }

  // Ranks of one colour form a group: here those with an even rank, and the others.
  const lockstep::ProcessGroup half =
      lockstep::split_group(lockstep::SplitBy{.color = lockstep::get_rank() % 2});
  const at::Tensor tensor = at::full({1}, lockstep::get_rank());
  lockstep::all_reduce(tensor, {.op = lockstep::ReduceOp::kMax, .group = half});
  say("the largest rank of its half is " + std::to_string(whole(tensor)));
}

void objects() {
  // Rank 0 hands out the work.
  std::vector<std::string> tasks;
  if (lockstep::get_rank() == 0) {
    for (int r = 0; r < lockstep::get_world_size(); ++r) tasks.push_back("part " + std::to_string(r));
  }
  std::string task;
  lockstep::scatter_object_list(task, tasks);

  const Report own = {.task = task,
                      .metrics = {{"loss", 10.0 * lockstep::get_rank()}},
                      .weights = at::full({2}, lockstep::get_rank())};
  std::vector<Report> reports;
  lockstep::gather_object(own, reports);
  for (const Report& report : reports) {  // empty but on rank 0
    say(report.task + " has loss " + std::to_string(std::lround(report.metrics.at("loss"))) +
        " and weights " + std::to_string(whole(report.weights)));
  }

  // The type travels with the value: another is an error that names both, and the group lives on.
  try {
    if (lockstep::get_rank() == 0) {
      std::vector<Report> sent = {own};
      lockstep::broadcast_object_list(sent);
    } else {
      std::vector<int> numbers;
      lockstep::broadcast_object_list(numbers);
    }
  } catch (const lockstep::ObjectTypeError& error) {
    say("a value of another type: " + std::string(error.message()));
  }
}

}  // namespace

int main() {
  const auto world = lockstep::init_process_group();
  groups();
  objects();
  lockstep::barrier();
}
