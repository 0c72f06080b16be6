// breakpoint(): one rank stops where a person can look at it, and the others wait for it.
//
//   lockstep::breakpoint();             // on every rank of the default group: rank 0 stops
//   lockstep::breakpoint(2, 10);        // rank 2, at the eleventh time that it comes here
//
// The rank says its pid and how to attach a debugger, and goes on when one of these happens:
//   - a line comes on its stdin, or, where that has nothing, on the terminal that the job was started from,
//     which is this rank's meanwhile (Ctrl-C as well);
//   - a debugger was attached, and lets it go on;
//   - `timeout` has passed.
// The others wait for it in a barrier. Meanwhile the timeouts of all groups are at least `timeout`.
//
// `skip` counts the calls at one place of the program, on each rank; those that are skipped cost nothing.
// Errors: InvalidArgument for a rank that is none, and before init_process_group(). If the rank dies the
// others hear it, as in any barrier.
// Thread safety: one thread of each rank.
#pragma once

#include <chrono>
#include <source_location>

#include "lockstep/base/clock.h"

namespace lockstep::tensor {

void breakpoint(int rank = 0, int skip = 0, Duration timeout = std::chrono::hours(1),
                const std::source_location& where = std::source_location::current());

}  // namespace lockstep::tensor

namespace lockstep {
using tensor::breakpoint;
}
