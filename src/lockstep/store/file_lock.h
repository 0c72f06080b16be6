// A lock on a whole file, between open file descriptions: of one process or of several, on one host or, where
// the file system carries locks (NFS does), on several.
//
// Thread safety: free functions; two threads that share a descriptor share its lock.
#pragma once

#include <cstdint>

#include "lockstep/base/status.h"

namespace lockstep::store {

enum class LockKind : std::uint8_t { kShared, kExclusive };

// False if another has it locked. Does not wait: the kernel's waits know no deadline. Locks that a descriptor
// has already are changed to `kind`. kUnsupported if the file system has no locks.
Result<bool> try_lock_file(int fd, LockKind kind);
// Closing the last copy of the descriptor unlocks too, also when the kernel does it for a killed process.
void unlock_file(int fd);

}  // namespace lockstep::store
