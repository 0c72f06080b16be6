// The machine's cores and NUMA nodes, by hwloc, and what each local rank is bound to.
//
// Thread safety: free functions, any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/types.h"

namespace lockstep::base {

struct Topology {
  struct Core {
    int numa_node = 0;
    std::vector<int> cpus;  // hardware threads, ascending
  };
  std::vector<Core> cores;  // only those this process may use
  int numa_nodes = 1;
  int packages = 1;
};
Result<Topology> read_topology();

enum class Binding { kNone, kCores, kNuma };
std::optional<Binding> parse_binding(std::string_view text);

// Pure: the CPUs for each of `local_size` ranks. Empty sets for kNone, and for kCores when there are more
// ranks than cores (binding would then only hurt). kCores splits the cores into runs as equal as they can be,
// and keeps each inside a NUMA node where that costs no equality (the slowest rank sets the pace); kNuma
// gives each rank a whole node, round robin.
std::vector<std::vector<int>> plan_binding(const Topology& topology, WorldSize local_size, Binding binding);

// "0-3,8": as taskset and cpusets write it.
std::string cpu_list_text(const std::vector<int>& cpus);
// Binds the calling thread (and the children it makes).
Status bind_this_thread(const std::vector<int>& cpus);

}  // namespace lockstep::base
