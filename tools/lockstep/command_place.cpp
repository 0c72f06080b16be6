#include "tools/lockstep/command_place.h"

namespace lockstep::tools {
namespace {

const CLI::App* subcommand(const CLI::App& command, const std::string& name) {
  const auto matches =
      command.get_subcommands([&name](const CLI::App* sub) { return sub->check_name(name); });
  return matches.empty() ? nullptr : matches.front();
}

bool is_flag(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

}  // namespace

CommandPlace step(CommandPlace place, const std::string& word) {
  if (place.in_program || word == "=") return place;  // bash splits --option=value at the sign
  if (place.value_of != nullptr) return {.command = place.command};
  if (word.starts_with("-") && word != "--") {
    const CLI::Option* option = place.command->get_option_no_throw(word);
    if (option != nullptr && !is_flag(*option)) place.value_of = option;
    return place;
  }
  if (const CLI::App* sub = subcommand(*place.command, word)) return {.command = sub};
  place.in_program = place.command->get_prefix_command();
  return place;
}

}  // namespace lockstep::tools
