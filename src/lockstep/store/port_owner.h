// Who has a port that this process wanted: another process of the same job, which answers sooner or later, or
// a stranger, which may never say a word.
//
// Thread safety: free functions, any thread.
#pragma once

#include <sys/types.h>

#include "lockstep/base/clock.h"

namespace lockstep::store {

// How long a stranger is asked: an error that a port is taken is to come within a second.
constexpr Duration kStrangerAnswers = std::chrono::milliseconds(800);

// Whether process `pid` certainly executes another program than this one does: a file of another name. Two
// builds of one program are none. False if that cannot be seen.
bool is_another_program(pid_t pid);

}  // namespace lockstep::store
