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
  // `limit`: how long a node may be silent. `step`: a look that comes later than this after the one before is
  // late, because the watch itself was kept from looking (a suspended or overloaded machine): it gives every
  // node its whole time again. Once per silence: of every further late look `step` counts, so that a watch
  // that is late every time still comes to its end.
  BeatWatch(int nodes, Duration limit, Duration step, TimePoint now);

  // `beats` is each node's counter, in their order; one that has not changed since the last look is silent.
  // Gives the node that was silent for too long, if any.
  std::optional<int> look(const std::vector<std::int64_t>& beats, TimePoint now);
  // Nobody was silent until now.
  void forgive();

 private:
  struct Node {
    std::int64_t beat = -1;
    Duration silence = Duration::zero();
    bool given_again = false;  // in this silence
  };
  const Duration limit_;
  const Duration step_;
  TimePoint last_look_;
  std::vector<Node> nodes_;
};

}  // namespace lockstep::base
