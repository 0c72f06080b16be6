#include "lockstep/tensor/debug_level.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "lockstep/base/text.h"
#include "lockstep/tensor/default_group.h"
#include "lockstep/tensor/errors.h"

namespace lockstep::tensor {

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

Result<DebugLevel> debug_level_of(const Environment& environment) {
  for (const char* const name : {"LOCKSTEP_DEBUG", "TORCH_DISTRIBUTED_DEBUG"}) {
    const auto found = environment.all.find(name);
    if (found == environment.all.end() || found->second.empty()) continue;
    if (const auto level = parse_debug_level(found->second)) return *level;
    return Status::invalid(cat("The environment variable ", name, "=", base::quoted(found->second),
                               " does not parse: expected off, info or detail."));
  }
  return DebugLevel::kOff;
}

DebugLevel get_debug_level() { return current_session("get_debug_level")->debug_level(); }

void set_debug_level(DebugLevel level) { current_session("set_debug_level")->set_debug_level(level); }

void set_debug_level_from_env() {
  const auto session = current_session("set_debug_level_from_env");
  const auto environment = Environment::read();
  throw_if_error(environment.status(), {});
  const auto level = debug_level_of(*environment);
  throw_if_error(level.status(), {});
  session->set_debug_level(*level);
}

}  // namespace lockstep::tensor
