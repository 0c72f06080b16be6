// Lists of ranks, for tests.
#pragma once

#include <vector>

#include "lockstep/base/types.h"

namespace lockstep::testing {

inline std::vector<Rank> ranks_below(int size) {
  std::vector<Rank> ranks;
  for (int i = 0; i < size; ++i) ranks.emplace_back(i);
  return ranks;
}

}  // namespace lockstep::testing
