// Who has stopped beating: node 0's watch over the agents of the other hosts.
//
// Thread safety: one thread. Time is what the caller says it is.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/base/clock.h"

namespace lockstep::launch {

class BeatWatch {
 public:
  // `limit`: how long an agent may be silent. `lateness`: a watch that was itself kept from looking for
  // longer than this (a suspended or overloaded machine) starts everybody's time anew.
  BeatWatch(int nodes, Duration limit, Duration lateness, base::TimePoint now);

  // `beats` is each node's counter, in their order; one that has not changed since the last look is silent.
  // Gives the node that was silent for too long, if any.
  std::optional<int> look(const std::vector<std::int64_t>& beats, base::TimePoint now);

 private:
  struct Node {
    std::int64_t beat = -1;
    base::TimePoint heard;
  };
  const Duration limit_;
  const Duration lateness_;
  base::TimePoint last_look_;
  std::vector<Node> nodes_;
};

}  // namespace lockstep::launch
