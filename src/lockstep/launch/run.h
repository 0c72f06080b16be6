// `lockstep run`: starts the ranks of a job on this host, watches them, and says what became of them.
//
// Thread safety: called once, on the main thread of a process that has no other: it takes over the signals
// and all child processes.
#pragma once

#include "lockstep/base/clock.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"
#include "lockstep/launch/options.h"

namespace lockstep::launch {

// Returns the exit status: 0; that of the first rank that failed (128 + N for signal N); 128 + N if the job
// was stopped by signal N; 126 or 127 if the program cannot be executed or found; 2 if the job could not be
// set up; 1 if another host's agent was lost. Everything is said on stderr; kInvalid (exit 2) is left to the
// caller to print. When it returns, no process that it started is left.
Result<int> run(const RunOptions& options, const Environment& environment, const Clock& clock);

}  // namespace lockstep::launch
