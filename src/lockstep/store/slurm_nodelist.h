// Slurm's compact lists: host names ("node[01-03,7],gpu[1-2]n[0-9]") and counts per node ("4(x2),3").
//
// Grammar of a node list, commas between items:
//   list = item *("," item)      item = 1*(text | "[" range *("," range) "]")      range = number ["-"
//   number]
// A range pads its numbers with zeros to the width of its first one. Several brackets in one item give every
// combination, the last bracket running fastest, as `scontrol show hostnames` prints them.
//
// Thread safety: pure functions.
// Limits: at most kMaxSlurmHosts names or counts, each name at most 255 bytes with 8 brackets; nothing beyond
// is ever built.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::store {

constexpr std::size_t kMaxSlurmHosts = 65536;

// Never empty when ok. The error says at which character the list went wrong.
Result<std::vector<std::string>> expand_nodelist(std::string_view list);

// "2(x3),1" gives 2, 2, 2, 1.
Result<std::vector<int>> expand_tasks_per_node(std::string_view list);

}  // namespace lockstep::store
