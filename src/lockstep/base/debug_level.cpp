#include "lockstep/base/debug_level.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace lockstep::base {

std::optional<DebugLevel> parse_debug_level(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  for (const DebugLevel level : {DebugLevel::kOff, DebugLevel::kInfo, DebugLevel::kDetail}) {
    if (lower == name_of(level)) return level;
  }
  return std::nullopt;
}

std::string_view name_of(DebugLevel level) {
  switch (level) {
    case DebugLevel::kOff:
      return "off";
    case DebugLevel::kInfo:
      return "info";
    case DebugLevel::kDetail:
      return "detail";
  }
  return "off";
}

}  // namespace lockstep::base
