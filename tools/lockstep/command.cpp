#include "tools/lockstep/command.h"

#include <algorithm>
#include <numeric>
#include <ostream>

#include "tools/lockstep/command_place.h"

namespace lockstep::tools {
namespace {

// The command that the arguments chose: the last one down the tree.
const CLI::App& chosen_command(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

std::vector<std::string> subcommand_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* sub : command.get_subcommands([](const CLI::App*) { return true; })) {
    if (!sub->get_name().empty() && !sub->get_group().empty()) names.push_back(sub->get_name());
  }
  return names;
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::string as_sentence(std::string text) {
  if (!text.empty() && text.back() != '.' && text.back() != '?') text += '.';
  return text;
}

// Takes the program that a command starts, and all behind it, off the arguments: CLI11 would take a program
// called "store" for our command of that name, and give what follows a -- to the outermost command.
std::vector<std::string> split_off_program(const CLI::App& app, std::vector<std::string>& arguments) {
  CommandPlace place{.command = &app};
  auto word = arguments.begin();
  for (; word != arguments.end(); ++word) {
    place = step(place, *word);
    if (place.in_program) break;
  }
  std::vector<std::string> program(word, arguments.end());
  arguments.erase(word, arguments.end());
  if (!program.empty() && program.front() == "--") program.erase(program.begin());
  return program;
}

// The option that was given more often than it can be, in words; empty if there is none.
std::string given_too_often(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    const auto most = static_cast<std::size_t>(option->get_items_expected_max());
    if (most > 0 && option->count() > most)
      return cat(option->get_name(), " is given ", option->count(), " times");
  }
  return {};
}

// The option that was given without its value; nullptr if there is none. CLI11's own sentence begins with its
// name.
const CLI::Option* given_without_value(const CLI::App& command, const std::string& theirs) {
  for (const CLI::Option* option : command.get_options()) {
    const bool takes_one = option->get_items_expected_max() > 0;
    if (takes_one && theirs.starts_with(cat(option->get_name(), ": "))) return option;
  }
  return nullptr;
}

// A sentence of ours for what CLI11 says of a flag with a value, "Could not convert: NAME = VALUE", and of an
// option without one, "NAME: 1 required TYPE missing". All other mistakes are found here, or by
// add_integer().
std::string wrong_value(const CLI::App& command, const CLI::ParseError& error) {
  constexpr std::string_view kTheirs = "Could not convert: ";
  std::string text = error.what();
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ArgumentMismatch)) {
    if (const CLI::Option* option = given_without_value(command, text); option != nullptr)
      return cat(option->get_name(), " needs a value: ", option->get_type_name());
  }
  const std::size_t equals = text.find(" = ");
  if (!text.starts_with(kTheirs) || equals == std::string::npos) return text;
  const std::string name = text.substr(kTheirs.size(), equals - kTheirs.size());
  const std::string given = base::quoted(text.substr(equals + 3));
  const CLI::Option* option = command.get_option_no_throw(name);
  if (option != nullptr && option->get_items_expected_max() == 0)
    return cat(name, " takes no value, and was given ", given);
  return cat(name, " is ", given, ", which is not what it takes");
}

// The option that was given with nothing for a value, in words; empty if there is none.
std::string given_empty(const CLI::App& command, const CommandContext& context) {
  for (const CLI::Option* option : command.get_options()) {
    const auto& values = option->results();
    const bool may_be = std::ranges::count(context.may_be_empty, option) > 0;
    if (may_be || option->get_items_expected_max() == 0 || std::ranges::count(values, std::string()) == 0)
      continue;
    return cat(option->get_name(), " is empty: give it a value",
               option->get_required() ? "" : ", or leave the option out");
  }
  return {};
}

// Whether one is the other mistyped: its letters in another order, or one too many or too few.
bool is_mistyped(const std::string& word, const std::string& name) {
  if (name.empty()) return false;
  return word.size() != name.size() || std::is_permutation(word.begin(), word.end(), name.begin());
}

// Of the few there are, as words: "bash and zsh".
std::string few_names(const std::vector<std::string>& names) {
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i)
    out += cat(i == 0 ? "" : (i + 1 == names.size() ? " and " : ", "), names[i]);
  return out;
}

// What to say of the first argument that nobody took.
std::string unexpected_argument(const CLI::App& command, const std::string& argument) {
  if (argument.starts_with("-")) return unknown_option(command, argument);
  const std::vector<std::string> subcommands = subcommand_names(command);
  if (subcommands.empty()) return cat("the argument ", base::quoted(argument), " was not expected");
  const std::string text = cat("there is no command ", base::quoted(argument));
  const std::string nearest = nearest_name(argument, subcommands);
  constexpr std::size_t kFew = 3;
  if (subcommands.size() <= kFew && !is_mistyped(argument, nearest))
    return cat(text, "; there ", subcommands.size() == 1 ? "is only " : "are ", few_names(subcommands));
  return nearest.empty() ? text : cat(text, "; did you mean '", nearest, "'?");
}

int print_usage_error(const CLI::App& command, const std::string& message, std::ostream& err) {
  const std::string name = full_name(command);
  err << name << ": " << as_sentence(message) << "\nTry '" << name << " --help'.\n";
  return kExitUsage;
}

// `code`, unless what was said could not be written.
int after_output(const CLI::App& command, int code, std::ostream& out, std::ostream& err) {
  if (out.flush()) return code;
  err << full_name(command) << ": the output could not be written.\n";
  return kExitFailure;
}

int on_parse_error(const CLI::App& app, const CLI::ParseError& error, std::ostream& out, std::ostream& err) {
  const CLI::App& command = chosen_command(app);
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success))
    return after_output(command, app.exit(error, out, err), out, err);
  // A mistyped option often leaves a required one unset: the mistake comes first.
  for (const CLI::App* at : {&app, &command}) {
    const std::vector<std::string> rest = at->remaining();
    if (!rest.empty() && !at->get_prefix_command()) {
      return print_usage_error(*at, unexpected_argument(*at, rest.front()), err);
    }
  }
  const std::string repeated = given_too_often(command);
  return print_usage_error(command, repeated.empty() ? wrong_value(command, error) : repeated, err);
}

// Insertions, deletions, replacements and swaps of neighbours that lead from `a` to `b`.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  std::iota(cost[0].begin(), cost[0].end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::filesystem::path CommandContext::libexec() const {
  return executable.parent_path().parent_path() / "libexec" / "lockstep";
}

Result<std::filesystem::path> CommandContext::helper(const std::string& name) const {
  const std::filesystem::path path = libexec() / name;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) {
    return Status::unsupported(
        cat("the helper program ", path.string(),
            " is not there; build or install Lockstep with LOCKSTEP_TORCH=ON to get it"));
  }
  return path;
}

void on_run(CLI::App& command, CommandContext& context, Body body) {
  command.callback([&context, body = std::move(body)] { context.body = body; });
}

std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? command.get_name() : cat(full_name(*parent), " ", command.get_name());
}

int run_command_line(CLI::App& app, CommandContext& context, std::vector<std::string> arguments,
                     std::ostream& out, std::ostream& err) {
  context.program = split_off_program(app, arguments);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    return on_parse_error(app, error, out, err);
  }
  const CLI::App& command = chosen_command(app);
  if (!context.body) {
    out << app.help();
    return after_output(app, kExitOk, out, err);
  }
  if (const std::string empty = given_empty(command, context); !empty.empty())
    return print_usage_error(command, empty, err);
  const Result<int> exit_status = context.body();
  if (exit_status.ok()) return after_output(command, *exit_status, out, err);
  const Status error = exit_status.status();
  if (error.code() == Code::kInvalid) return print_usage_error(command, std::string(error.message()), err);
  err << full_name(command) << ": " << as_sentence(std::string(error.message())) << '\n';
  return kExitFailure;
}

std::string unknown_option(const CLI::App& command, const std::string& argument) {
  // CLI11 has taken "-m=3" for -m, and left the rest.
  if (argument.starts_with("-="))
    return cat(base::quoted(argument.substr(1)), " behind a short option is not understood: leave it out");
  const std::string name = argument.substr(0, argument.find('='));
  const std::string nearest = nearest_name(name, option_names(command));
  return cat("there is no option ", base::quoted(name),
             nearest.empty() ? "" : cat("; did you mean '", nearest, "'?"));
}

std::string nearest_name(const std::string& word, const std::vector<std::string>& names) {
  std::string nearest;
  std::size_t least = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& name : names) {
    const std::size_t distance = edit_distance(word, name);
    // A distance of the whole word is no resemblance at all.
    if (distance < least && distance < std::min(word.size(), name.size())) {
      least = distance;
      nearest = name;
    }
  }
  return nearest;
}

}  // namespace lockstep::tools
