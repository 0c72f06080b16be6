// How much a program tells and checks of what it does, as torch's levels of these names. What each of them
// means is in tensor/debug_level.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace lockstep::base {

enum class DebugLevel : std::uint8_t { kOff, kInfo, kDetail };

// "off", "info" or "detail", in any case.
std::optional<DebugLevel> parse_debug_level(std::string_view text);
std::string_view name_of(DebugLevel level);

}  // namespace lockstep::base

namespace lockstep {
using base::DebugLevel;
}
