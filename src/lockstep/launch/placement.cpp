#include "lockstep/launch/placement.h"

#include <map>

namespace lockstep::launch {

std::vector<RankPlace> place_ranks(const std::vector<NodePlan>& nodes) {
  int world_size = 0;
  std::map<std::string, int> role_sizes;
  for (const NodePlan& node : nodes) {
    world_size += node.nproc;
    role_sizes[node.role] += node.nproc;
  }
  std::vector<RankPlace> places;
  places.reserve(static_cast<std::size_t>(world_size));
  std::map<std::string, int> role_ranks;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const NodePlan& node = nodes[i];
    for (int local_rank = 0; local_rank < node.nproc; ++local_rank) {
      places.push_back({.rank = Rank{static_cast<int>(places.size())},
                        .world_size = WorldSize{world_size},
                        .local_rank = local_rank,
                        .local_world_size = WorldSize{node.nproc},
                        .node = static_cast<int>(i),
                        .nodes = static_cast<int>(nodes.size()),
                        .role = node.role,
                        .role_rank = Rank{role_ranks[node.role]++},
                        .role_world_size = WorldSize{role_sizes[node.role]},
                        .host = node.host});
    }
  }
  return places;
}

}  // namespace lockstep::launch
