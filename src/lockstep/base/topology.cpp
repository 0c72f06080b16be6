#include "lockstep/base/topology.h"

#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"

namespace lockstep::base {
namespace {

struct TopologyDeleter {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Hwloc = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, TopologyDeleter>;

std::vector<int> cpus_of(hwloc_const_cpuset_t set) {
  std::vector<int> cpus;
  for (int cpu = hwloc_bitmap_first(set); cpu >= 0; cpu = hwloc_bitmap_next(set, cpu)) cpus.push_back(cpu);
  return cpus;
}

// The first NUMA node near an object; 0 on a machine that has none.
int numa_node_of(hwloc_obj_t object) {
  return object->nodeset == nullptr ? 0 : std::max(0, hwloc_bitmap_first(object->nodeset));
}

// The indices of the cores of each node, nodes in ascending order. Nodes without a usable core are left out.
std::vector<std::vector<std::size_t>> cores_by_node(const Topology& topology) {
  std::map<int, std::vector<std::size_t>> nodes;
  for (std::size_t i = 0; i < topology.cores.size(); ++i) nodes[topology.cores[i].numa_node].push_back(i);
  std::vector<std::vector<std::size_t>> out;
  out.reserve(nodes.size());
  for (auto& [node, cores] : nodes) out.push_back(std::move(cores));
  return out;
}

using CpuSets = std::vector<std::vector<int>>;

// Appends `count` runs, as equal as they can be, that share these cores in order.
void append_runs(const Topology& topology, const std::vector<std::size_t>& cores, std::size_t count,
                 CpuSets& out) {
  for (std::size_t run = 0; run < count; ++run) {
    std::vector<int> cpus;
    for (std::size_t i = run * cores.size() / count; i < (run + 1) * cores.size() / count; ++i) {
      const std::vector<int>& threads = topology.cores[cores[i]].cpus;
      cpus.insert(cpus.end(), threads.begin(), threads.end());
    }
    std::ranges::sort(cpus);
    out.push_back(std::move(cpus));
  }
}

// How many of `ranks` each node takes so that no run crosses a node and all are as equal as they would be
// without nodes; empty if there is no such way.
std::vector<std::size_t> ranks_by_node(const std::vector<std::vector<std::size_t>>& nodes, std::size_t cores,
                                       std::size_t ranks) {
  const std::size_t run = cores / ranks;  // a run has this many cores, or one more
  std::vector<std::size_t> counts;
  counts.reserve(nodes.size());
  std::size_t taken = 0;
  for (const auto& node : nodes) {
    counts.push_back((node.size() + run) / (run + 1));  // the fewest: runs of run + 1
    taken += counts.back();
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::size_t most = nodes[i].size() / run;
    if (most < counts[i] || taken > ranks) return {};
    const std::size_t more = std::min(most - counts[i], ranks - taken);
    counts[i] += more;
    taken += more;
  }
  return taken == ranks ? counts : std::vector<std::size_t>();
}

CpuSets bind_to_cores(const Topology& topology, std::size_t ranks) {
  const auto nodes = cores_by_node(topology);
  const auto counts = ranks_by_node(nodes, topology.cores.size(), ranks);
  CpuSets out;
  if (!counts.empty()) {
    for (std::size_t i = 0; i < nodes.size(); ++i) append_runs(topology, nodes[i], counts[i], out);
    return out;
  }
  std::vector<std::size_t> all;
  all.reserve(topology.cores.size());
  for (const auto& cores : nodes) all.insert(all.end(), cores.begin(), cores.end());
  append_runs(topology, all, ranks, out);
  return out;
}

CpuSets bind_to_nodes(const Topology& topology, std::size_t ranks) {
  CpuSets nodes;
  for (const auto& cores : cores_by_node(topology)) append_runs(topology, cores, 1, nodes);
  CpuSets out;
  for (std::size_t rank = 0; rank < ranks; ++rank) out.push_back(nodes[rank % nodes.size()]);
  return out;
}

}  // namespace

Result<Topology> read_topology() {
  hwloc_topology_t handle = nullptr;
  if (hwloc_topology_init(&handle) != 0) return Status::from_errno("hwloc cannot start", errno);
  const Hwloc owner(handle);
  // Without INCLUDE_DISALLOWED the topology holds only what the cpuset allows; the affinity mask is cut
  // below.
  if (hwloc_topology_load(handle) != 0)
    return Status::from_errno("hwloc cannot read this machine's topology", errno);
  const std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)> allowed(hwloc_bitmap_alloc(),
                                                                              &hwloc_bitmap_free);
  LOCKSTEP_CHECK(allowed != nullptr, "there is no memory for a bitmap");
  if (hwloc_get_cpubind(handle, allowed.get(), HWLOC_CPUBIND_PROCESS) != 0)
    hwloc_bitmap_copy(allowed.get(), hwloc_topology_get_allowed_cpuset(handle));

  Topology topology;
  const std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)> usable(hwloc_bitmap_alloc(),
                                                                             &hwloc_bitmap_free);
  LOCKSTEP_CHECK(usable != nullptr, "there is no memory for a bitmap");
  // Some virtual machines show hardware threads but no cores.
  const hwloc_obj_type_t type =
      hwloc_get_nbobjs_by_type(handle, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  for (hwloc_obj_t core = nullptr; (core = hwloc_get_next_obj_by_type(handle, type, core)) != nullptr;) {
    hwloc_bitmap_and(usable.get(), core->cpuset, allowed.get());
    if (hwloc_bitmap_iszero(usable.get())) continue;
    topology.cores.push_back({.numa_node = numa_node_of(core), .cpus = cpus_of(usable.get())});
  }
  if (topology.cores.empty()) return Status::internal("hwloc shows no core that this process may use");
  topology.numa_nodes = std::max(1, hwloc_get_nbobjs_by_type(handle, HWLOC_OBJ_NUMANODE));
  topology.packages = std::max(1, hwloc_get_nbobjs_by_type(handle, HWLOC_OBJ_PACKAGE));
  return topology;
}

std::optional<Binding> parse_binding(std::string_view text) {
  if (text == "none") return Binding::kNone;
  if (text == "cores") return Binding::kCores;
  if (text == "numa") return Binding::kNuma;
  return std::nullopt;
}

std::vector<std::vector<int>> plan_binding(const Topology& topology, WorldSize local_size, Binding binding) {
  LOCKSTEP_CHECK(local_size.value >= 1, "a host has at least one rank");
  const auto ranks = static_cast<std::size_t>(local_size.value);
  if (binding == Binding::kNone || topology.cores.empty()) return CpuSets(ranks);
  if (binding == Binding::kNuma) return bind_to_nodes(topology, ranks);
  return ranks > topology.cores.size() ? CpuSets(ranks) : bind_to_cores(topology, ranks);
}

std::string cpu_list_text(const std::vector<int>& cpus) {
  std::string out;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    if (!out.empty()) out += ',';
    out += last == i ? cat(cpus[i]) : cat(cpus[i], "-", cpus[last]);
    i = last + 1;
  }
  return out;
}

Status bind_this_thread(const std::vector<int>& cpus) {
  if (cpus.empty()) return Status::invalid("a thread cannot be bound to no CPU at all");
  const auto [least, most] = std::ranges::minmax(cpus);
  if (least < 0) return Status::invalid(cat("there is no CPU ", least));
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask(CPU_ALLOC(most + 1),
                                                              [](cpu_set_t* set) { CPU_FREE(set); });
  LOCKSTEP_CHECK(mask != nullptr, "there is no memory for a CPU mask");
  const std::size_t size = CPU_ALLOC_SIZE(most + 1);
  CPU_ZERO_S(size, mask.get());
  for (const int cpu : cpus) CPU_SET_S(cpu, size, mask.get());
  if (sched_setaffinity(0, size, mask.get()) != 0)
    return Status::from_errno(cat("cannot bind to CPUs ", cpu_list_text(cpus)), errno);
  return {};
}

}  // namespace lockstep::base
