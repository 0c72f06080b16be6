#include "tools/lockstep/completion.h"

#include <algorithm>

#include "lockstep/base/text.h"

namespace lockstep::tools {
namespace {

// Where the words before the one being typed have led.
struct Place {
  const CLI::App* command;
  const CLI::Option* value_of = nullptr;  // the option whose value comes next
  bool in_program = false;                // behind the program that `run` starts
};

const CLI::App* subcommand(const CLI::App& command, const std::string& name) {
  const auto matches =
      command.get_subcommands([&name](const CLI::App* sub) { return sub->check_name(name); });
  return matches.empty() ? nullptr : matches.front();
}

bool is_flag(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

Place step(Place place, const std::string& word) {
  if (place.in_program || word == "=") return place;  // bash splits --option=value at the sign
  if (place.value_of != nullptr) return {.command = place.command};
  if (word.starts_with("-")) {
    const CLI::Option* option = place.command->get_option_no_throw(word);
    if (option != nullptr && !is_flag(*option)) place.value_of = option;
    return place;
  }
  if (const CLI::App* sub = subcommand(*place.command, word)) return {.command = sub};
  place.in_program = place.command->get_prefix_command();
  return place;
}

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
    const std::vector<std::string>& names = option->get_lnames();
    for (const std::string& name : names) {
      // torchrun's spelling of the same name is understood, but not offered.
      if (name.find('_') != std::string::npos && names.size() > 1) continue;
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
  Place place{.command = &app};
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
