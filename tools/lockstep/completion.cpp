#include "tools/lockstep/completion.h"

#include <algorithm>

#include "lockstep/base/text.h"
#include "tools/lockstep/command_place.h"

namespace lockstep::tools {
namespace {

// The values of a choice: CLI11 shows them in the option's type as "TEXT:{none,cores,numa}".
std::vector<Candidate> values(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t begin = type.find('{');
  const std::size_t end = type.find('}', begin);
  std::vector<Candidate> out;
  if (begin == std::string::npos || end == std::string::npos) return out;
  for (std::string& value : base::split(type.substr(begin + 1, end - begin - 1), ',')) {
    out.push_back({.word = std::move(value), .description = {}});
  }
  return out;
}

std::vector<Candidate> options(const CLI::App& command) {
  std::vector<Candidate> out;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    for (const std::string& name : option->get_lnames()) {
      out.push_back({.word = "--" + name, .description = option->get_description()});
    }
  }
  return out;
}

std::vector<Candidate> subcommands(const CLI::App& command) {
  std::vector<Candidate> out;
  for (const CLI::App* sub : command.get_subcommands([](const CLI::App*) { return true; })) {
    if (!sub->get_group().empty())
      out.push_back({.word = sub->get_name(), .description = sub->get_description()});
  }
  return out;
}

}  // namespace

std::vector<Candidate> complete(const CLI::App& app, const std::vector<std::string>& words) {
  if (words.empty()) return {};
  CommandPlace place{.command = &app};
  for (std::size_t i = 0; i + 1 < words.size(); ++i) place = step(place, words[i]);
  std::string typed = words.back();

  std::vector<Candidate> out;
  if (place.in_program) return out;
  if (place.value_of != nullptr) {
    if (typed == "=") typed.clear();
    out = values(*place.value_of);
  } else {
    out = typed.starts_with("-") ? options(*place.command) : subcommands(*place.command);
  }
  std::erase_if(out, [&typed](const Candidate& candidate) { return !candidate.word.starts_with(typed); });
  return out;
}

}  // namespace lockstep::tools
