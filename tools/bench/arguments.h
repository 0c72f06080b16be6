// What the options of several benches have in common, read and checked. Pure. kInvalid with one sentence that
// names the option.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/topology.h"

namespace lockstep::bench {

// "resident,foreign": each of `choices` at most once.
Result<std::vector<std::string>> parse_choices(const std::string& option, const std::string& text,
                                               const std::vector<std::string>& choices);
// "1,16,256": whole numbers from 1 to 4096.
Result<std::vector<int>> parse_counts(const std::string& option, const std::string& text);
// --cpu-binding
Result<base::Binding> parse_binding(const std::string& text);

}  // namespace lockstep::bench
