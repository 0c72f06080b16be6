// How a command hooks into `lockstep`.
//
// Each command lives in its own file and has one function, called by main.cpp:
//
//   void add_secret_command(CLI::App& app, CommandContext& context) {
//     CLI::App* command = app.add_subcommand("secret", "Make the secret file of a job");
//     auto options = std::make_shared<SecretOptions>();
//     command->add_option("FILE", options->path, "Where to write it")->required();
//     on_run(*command, context, [options, &context] { return make_secret(*options, context); });
//   }
//
// A command of a group (`lockstep bench store`) is the same with the group's App as `app`; a group has no
// body and prints its help. Completion, `--help` and the check of the docs are made from the tree of Apps, so
// every option needs a description, and a positional argument a name in capitals. on_run() comes after the
// options: it takes their names for the suggestions.
//
// Exit status: kExitOk; kExitUsage for bad input, with one sentence on stderr and a hint; kExitFailure for
// everything else, unless a command documents another (run gives that of the first rank that failed). A body
// returns it, or a Status, which is printed: kInvalid becomes kExitUsage, any other kExitFailure.
// CLI11 is seen by tools/ only.
#pragma once

#include <CLI/CLI.hpp>
#include <concepts>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"
#include "lockstep/base/text.h"

namespace lockstep::tools {

constexpr int kExitOk = 0;
constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

using Body = std::function<Result<int>()>;

// What every command may use. Outlives the commands' bodies.
struct CommandContext {
  // Read once, by main. An error (a variable does not parse) is for the commands that need it to return:
  // `lockstep --help` works in any environment.
  Result<Environment> environment;
  const Clock& clock = Clock::steady();
  std::vector<const CLI::Option*> may_be_empty = {};  // all others refuse an empty value, see on_run()
  std::filesystem::path executable = {};              // of this process, absolute
  // Set by parsing:
  Body body = {};  // of the command that was given
  std::vector<std::string> program =
      {};  // what a command that starts one (CLI11: a prefix command) is to start

  // Where the helper programs are (those that link libtorch): ../libexec/lockstep beside the folder of the
  // command, in the build tree as well as installed.
  std::filesystem::path libexec() const;
  // kUnsupported with what to build or install if there is no such helper.
  Result<std::filesystem::path> helper(const std::string& name) const;
};

// Makes `body` what runs when `command` was given. Bodies run after the whole command line was read. An
// option with an empty value never comes to a body, unless it is one of the context's `may_be_empty`: most
// likely the value is a variable of a script that is not set, and would count as one that was not given.
void on_run(CLI::App& command, CommandContext& context, Body body);

// An option whose value is a whole number in a range. The error names the option, what was given and the
// range; CLI11 alone would take -1 for a huge number.
template <std::integral T>
struct Range {
  T least;
  T most;
};
template <std::integral T>
CLI::Option* add_integer(CLI::App& command, const std::string& name, T& value, const std::string& description,
                         Range<T> range) {
  const auto read = [name, &value, range](const std::string& text) {
    const std::optional<T> number = base::parse_integer<T>(text);
    if (!number || *number < range.least || *number > range.most) {
      throw CLI::ValidationError(cat(name, " is ", base::quoted(text), " but must be a whole number from ",
                                     range.least, " to ", range.most));
    }
    value = *number;
  };
  return command.add_option_function<std::string>(name, read, description)->type_name("N");
}

// "lockstep bench store": the command as the user would type it.
std::string full_name(const CLI::App& command);

// Reads the arguments (without the program's name), runs the command, returns the exit status. `lockstep`
// alone, or a group alone, prints its help.
int run_command_line(CLI::App& app, CommandContext& context, std::vector<std::string> arguments,
                     std::ostream& out, std::ostream& err);

// What to say of an option that `command` does not have. Pure.
std::string unknown_option(const CLI::App& command, const std::string& argument);

// The nearest of `names` to a mistyped `word`; empty if none is near. Pure.
std::string nearest_name(const std::string& word, const std::vector<std::string>& names);

}  // namespace lockstep::tools
