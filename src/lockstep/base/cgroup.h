// The limits that control groups put on this process, behind usable_cores(), memory_limits() and oom_kills()
// of process.h: v1, v2 and both mounted beside each other, on a host and inside a container.
//
// Every function takes the folder below which /proc and the control groups are read: "" for this machine, a
// fixture for a test. A limit holds for every group from the process's own up to the mount point; what a
// container cannot see of the groups above it does not count. Files that are missing or that do not parse set
// no limit.
//
// Thread safety: free functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/base/process.h"
#include "lockstep/base/status.h"

namespace lockstep::base {

// The smallest of `affinity`, the cpuset and the CPU quota (rounded up), at least 1.
int usable_cores_below(const std::string& root, int affinity);
// The error is that /proc/meminfo does not tell.
Result<MemoryLimits> memory_limits_below(const std::string& root);
std::optional<std::uint64_t> oom_kills_below(const std::string& root);

}  // namespace lockstep::base
