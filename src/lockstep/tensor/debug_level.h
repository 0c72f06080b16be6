// How much Lockstep tells and checks of a program's operations, as torch's levels of these names.
//
//   off       nothing
//   info      one line when the world is joined, and one summary of each group a minute, from its rank 0
//   detail    also: inputs are searched for NaN, results that must be equal on all ranks are compared, and
//             every error of an operation has the C++ stack of its call
//
// By InitOptions::debug, else LOCKSTEP_DEBUG, else TORCH_DISTRIBUTED_DEBUG; else off. It is the same on all
// ranks: at detail a collective does more, and one rank that does not is out of step.
// At detail asynchronous collectives are run by the call itself, as torch's blocks in them: it returns when
// all ranks have come.
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "lockstep/base/clock.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"

namespace lockstep::tensor {

enum class DebugLevel : std::uint8_t { kOff, kInfo, kDetail };

struct DebugOptions {
  std::optional<DebugLevel> level = {};              // else the environment's
  Duration summary_every = std::chrono::minutes(1);  // at info
};

// Of the world that this process is in. InvalidArgument before init_process_group().
DebugLevel get_debug_level();
// For operations that are issued later. All ranks set it between the same two operations.
void set_debug_level(DebugLevel level);
// To what the environment says now.
void set_debug_level_from_env();

// "off", "info" or "detail", in any case.
std::optional<DebugLevel> parse_debug_level(std::string_view text);
std::string_view name_of(DebugLevel level);
// kInvalid for a variable that names no level.
Result<DebugLevel> debug_level_of(const Environment& environment);

}  // namespace lockstep::tensor

namespace lockstep {
using tensor::DebugLevel;
using tensor::DebugOptions;
using tensor::get_debug_level;
using tensor::set_debug_level;
using tensor::set_debug_level_from_env;
}  // namespace lockstep
