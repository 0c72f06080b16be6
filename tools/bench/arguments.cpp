#include "tools/bench/arguments.h"

#include <algorithm>

#include "lockstep/base/text.h"

namespace lockstep::bench {

Result<std::vector<std::string>> parse_choices(const std::string& option, const std::string& text,
                                               const std::vector<std::string>& choices) {
  std::vector<std::string> out;
  for (const std::string& part : base::split(text, ',')) {
    const bool known = std::find(choices.begin(), choices.end(), part) != choices.end();
    if (!known || std::find(out.begin(), out.end(), part) != out.end()) {
      return Status::invalid(cat(option, " ", base::quoted(text), " is not a list of ",
                                 base::join(choices, " and "), ", each at most once"));
    }
    out.push_back(part);
  }
  return out;
}

Result<std::vector<int>> parse_counts(const std::string& option, const std::string& text) {
  constexpr int kMost = 4096;
  std::vector<int> counts;
  for (const std::string& part : base::split(text, ',')) {
    const auto count = base::parse_integer<int>(part);
    if (!count || *count < 1 || *count > kMost) {
      return Status::invalid(cat(option, " ", base::quoted(text),
                                 " is not a list of whole numbers from 1 to ", kMost, ", such as 1,16"));
    }
    counts.push_back(*count);
  }
  return counts;
}

Result<base::Binding> parse_binding(const std::string& text) {
  if (text == "cores") return base::Binding::kCores;
  if (text == "none") return base::Binding::kNone;
  return Status::invalid(cat("--cpu-binding ", base::quoted(text), " is neither none nor cores"));
}

}  // namespace lockstep::bench
