// The situations of parity.py, on our side (parity_situations.py has the others).
#pragma once

#include <nlohmann/json.hpp>

namespace lockstep::testing {

// By name, whether it is an error on this rank.
nlohmann::json find_errors();

}  // namespace lockstep::testing
