// Whether the process behind a member's record can still be alive, as far as this host can tell.
//
// Thread safety: free functions, any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/base/process.h"
#include "lockstep/store/member.h"

namespace lockstep::store {

// When a process started, in clock ticks since boot; nothing if there is no such process (a zombie counts as
// none) or /proc does not show it.
std::optional<std::uint64_t> process_start_time(int pid);

// Now, on the clock of process_start_time(). 0 if the kernel does not say.
std::uint64_t boot_ticks();

// True only if it is certain: same boot and same PID namespace, and no process with that pid and start time.
// Of another host nothing is ever certain.
bool is_certainly_gone(const Member& member, const base::HostIdentity& here);

}  // namespace lockstep::store
