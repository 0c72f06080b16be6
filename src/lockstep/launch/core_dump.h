// Where the kernel has put a core dump, by /proc/sys/kernel/core_pattern.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

namespace lockstep::launch {

struct CrashedProcess {
  pid_t pid = 0;
  std::string name = {};  // of the executable, without its folder
  std::string host = {};
  std::string folder = {};  // in which it ran
  int signal = 0;
};

// Pure: the pattern with what is known filled in and * for the rest, as an absolute glob; empty if the
// pattern hands dumps to a program. `uses_pid` is /proc/sys/kernel/core_uses_pid.
std::string core_dump_glob(std::string_view pattern, bool uses_pid, const CrashedProcess& process);

// A sentence that says where the dump is, or which program has it, or why it is not found. `dumped` is what
// the wait status says; without it the sentence says how to get one, for signals that would make one.
std::string core_dump_text(const CrashedProcess& process, bool dumped);

}  // namespace lockstep::launch
