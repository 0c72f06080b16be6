// The machine that a bench ran on, for the head of its report.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace lockstep::bench {

// Host name, usable cores, processor, system.
nlohmann::json machine_json();

}  // namespace lockstep::bench
