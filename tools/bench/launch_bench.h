// `lockstep bench launch`: what starting a job costs, beside the program itself and beside torchrun.
#pragma once

#include <vector>

#include "tools/lockstep/command.h"

namespace lockstep::bench {

// Adds `launch` to the group `lockstep bench`.
void add_launch_bench(CLI::App& bench, tools::CommandContext& context);

// The middle and the quartiles of `values`, which are not empty. Pure.
struct Spread {
  double low = 0;
  double median = 0;
  double high = 0;
};
Spread spread_of(std::vector<double> values);

}  // namespace lockstep::bench
