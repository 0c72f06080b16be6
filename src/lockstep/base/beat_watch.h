// Who has stopped beating: a watch over the counters of others, such as agents or ranks.
//
// Thread safety: one thread. Time is what the caller says it is.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/base/clock.h"

namespace lockstep::base {

class BeatWatch {
 public:
  // `limit`: how long a node may be silent. `step`: of the time between two looks no more than this counts:
  // a watch that was itself kept from looking (a suspended or overloaded machine) does not blame the others
  // for it, and one that is late every time still comes to its end.
  BeatWatch(int nodes, Duration limit, Duration step, TimePoint now);

  // `beats` is each node's counter, in their order; one that has not changed since the last look is silent.
  // Gives the node that was silent for too long, if any.
  std::optional<int> look(const std::vector<std::int64_t>& beats, TimePoint now);

 private:
  struct Node {
    std::int64_t beat = -1;
    Duration silence = Duration::zero();
  };
  const Duration limit_;
  const Duration step_;
  TimePoint last_look_;
  std::vector<Node> nodes_;
};

}  // namespace lockstep::base
