// How much Lockstep tells and checks of a program's operations, as torch's levels of these names.
//
//   off       nothing
//   info      one line when the world is joined, and one summary of each group a minute, from its rank 0
//   detail    also: inputs are searched for NaN, results that must be equal on all ranks are compared, and
//             every error of an operation has the C++ stack of its call
//
// That of a world is by InitOptions::debug, else by set_debug_level(), else LOCKSTEP_DEBUG, else
// TORCH_DISTRIBUTED_DEBUG; else off. It is the same on all ranks: at detail a collective does more, and one
// rank that does not is out of step.
// At detail asynchronous collectives stay asynchronous, but for backends from outside that are no
// RoundStarter: there the call returns when all ranks have come. Thread safety: any thread.
#pragma once

#include <optional>

#include "lockstep/base/clock.h"
#include "lockstep/base/debug_level.h"

namespace lockstep::tensor {

using base::DebugLevel;

struct DebugOptions {
  std::optional<DebugLevel> level = {};              // else as above
  Duration summary_every = std::chrono::minutes(1);  // at info
};

// Of the world that this process is in. Without one: what a world would have that is joined now, with no
// level of its own. InvalidArgument for a variable that names no level.
DebugLevel get_debug_level();
// For operations that are issued later, in this world and in later ones. All ranks set it between the same
// two operations, or before they join.
void set_debug_level(DebugLevel level);
// To what the environment says now.
void set_debug_level_from_env();

}  // namespace lockstep::tensor

namespace lockstep {
using tensor::DebugOptions;
using tensor::get_debug_level;
using tensor::set_debug_level;
using tensor::set_debug_level_from_env;
}  // namespace lockstep
