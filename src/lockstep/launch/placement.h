// Who gets which rank: pure functions over the list of hosts.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/types.h"

namespace lockstep::launch {

// One agent's host, as all agents know it.
struct NodePlan {
  std::string host = {};
  int nproc = 1;
  std::string role = "default";

  bool operator==(const NodePlan&) const = default;
};

// One rank's place in the job.
struct RankPlace {
  Rank rank;
  WorldSize world_size;
  int local_rank = 0;
  WorldSize local_world_size;
  int node = 0;  // torchrun's group rank
  int nodes = 1;
  std::string role = "default";
  Rank role_rank;  // among the ranks of its role, over all hosts
  WorldSize role_world_size;
  std::string host = {};

  bool operator==(const RankPlace&) const = default;
};

// Ranks are consecutive on a host and follow the order of `nodes`.
std::vector<RankPlace> place_ranks(const std::vector<NodePlan>& nodes);

}  // namespace lockstep::launch
