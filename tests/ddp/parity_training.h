// The trainings of parity.py, on our side (parity_training.py has the others).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace lockstep::testing {

// What each has come to on this rank; the weights and batches are in the folder.
nlohmann::json run_trainings(const nlohmann::json& trainings, const std::string& folder);

}  // namespace lockstep::testing
