// How torch numbers the members of a group. Their world may number them otherwise: it is the group's alone
// where the default group is another backend's, and keeps its numbers when it shrinks. Errors speak of the
// world's ranks, and then say which of torch's they are.
//
// Immutable.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/types.h"

namespace lockstep::python {

class RankNames {
 public:
  // Both by rank in the group; `own` is this process's there.
  RankNames(const std::vector<Rank>& world, std::vector<int> torch, int own);

  // Ranks of the default group, by rank in the group.
  const std::vector<int>& torchs() const { return torchs_; }
  int own() const { return torchs_[own_]; }
  // An error of the world's, as the program is told.
  Status told(const Status& status) const;

 private:
  const std::vector<int> torchs_;
  const std::size_t own_;
  std::string note_;  // empty: both number alike
};

}  // namespace lockstep::python
