// Where the words of a command line lead, read one after the other.
//
// Thread safety: values and pure functions.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace lockstep::tools {

struct CommandPlace {
  const CLI::App* command;
  const CLI::Option* value_of = nullptr;  // the option whose value comes next
  bool in_program = false;                // behind the program that `run` starts, or behind the -- before it
};

// The place after `word`.
CommandPlace step(CommandPlace place, const std::string& word);

}  // namespace lockstep::tools
