// The processes that a process has left behind.
#pragma once

#include <sys/types.h>

#include <vector>

namespace lockstep::launch {

// The child processes of this process, ascending; zombies are among them. With PR_SET_CHILD_SUBREAPER that
// includes what its descendants have orphaned.
std::vector<pid_t> child_processes();

}  // namespace lockstep::launch
