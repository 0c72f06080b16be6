// Uses the installed component torch. (<lockstep/lockstep.h> would do as well, and take longer to compile.)
#include <ATen/ops/full.h>

#include <cstdio>

#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/groups.h"
#include "lockstep/tensor/init.h"

int main() {
  const auto world = lockstep::init_process_group();
  const at::Tensor tensor = at::full({4}, lockstep::get_rank() + 1);
  lockstep::all_reduce(tensor);
  std::printf("the sum over %d ranks is %g\n", lockstep::get_world_size(), tensor[0].item<double>());
}
