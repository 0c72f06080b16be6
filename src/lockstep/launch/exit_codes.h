// What `lockstep run` exits with, where it is not a rank's own code. docs/launching.md has the table.
#pragma once

namespace lockstep::launch {

constexpr int kExitFailure = 1;  // another host's agent was lost
constexpr int kExitUsage = 2;    // the job could not be set up
constexpr int kExitNotExecutable = 126;
constexpr int kExitNotFound = 127;
constexpr int kExitSignal = 128;  // and the number of the signal, as a shell says it

}  // namespace lockstep::launch
