// Proves by doing it that two processes of this host can share memory in the way ranks do.
#pragma once

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// Makes a sealed memfd, hands it to a child over an abstract unix socket, has each write a page that the
// other reads back, and gives the time from the child's connection to the end. The error names the step that
// failed and in which of the two processes. The child is gone on return, whatever happened. Thread safety:
// any thread; the child of a threaded process makes plain system calls only.
Result<Duration> prove_memory_sharing(const Deadline& deadline);

}  // namespace lockstep::launch
