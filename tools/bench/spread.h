// The middle of what was measured, and how far it scatters. Pure.
#pragma once

#include <vector>

namespace lockstep::bench {

struct Spread {
  double low = 0;
  double median = 0;
  double high = 0;
};

// The quartiles. `values` is not empty, here and below.
Spread quartiles_of(std::vector<double> values);
// The lowest and the highest.
Spread range_of(std::vector<double> values);

}  // namespace lockstep::bench
