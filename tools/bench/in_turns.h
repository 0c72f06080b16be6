// Measures a case on every side of a comparison, in turns, so that a busy moment hits all of them.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "tools/bench/bench_side.h"
#include "tools/bench/comparison.h"

namespace lockstep::bench {

// How one side measures one case in each round: batches of that many operations.
struct BatchPlan {
  int iterations = 1;
  int batches = 3;
};

// How long a batch and a round of one side should take. Plans are made by it.
struct Pace {
  double batch_micros = 0;
  double round_micros = 0;
  int most_iterations = 1;
  int fewest_batches = 1;
  int most_batches = 1;
};

struct TurnsCase {
  std::string label = {};                                                       // for the line of progress
  std::function<std::string(const BatchPlan&, std::size_t side)> command = {};  // ours is side 0
  BatchKind kind = {};                                                          // of a batch of one iteration
  Pace pace = {};
  int rounds = 1;
};

// Ours, then the peers in their order; a peer that lacks the operation has no rounds, and a note says why.
// Each round measures every side, ours first, in every other round the other way round. kUnsupported if ours
// lacks the operation; kInternal if a peer gave a wrong result.
Result<std::vector<PeerRounds>> measure_in_turns(const BenchSides& sides, const TurnsCase& what,
                                                 std::vector<std::string>& notes);

// By side.
nlohmann::json versions_json(const BenchSides& sides);

}  // namespace lockstep::bench
