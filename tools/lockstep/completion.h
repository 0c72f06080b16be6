// What a shell may offer for a half-typed `lockstep` command line, read from the tree of commands itself.
#pragma once

#include <string>
#include <vector>

#include "tools/lockstep/command.h"

namespace lockstep::tools {

struct Candidate {
  std::string word;
  std::string description;
};

// `words` are those after the program's name; the last is the one being typed, perhaps empty. No candidates
// means that the shell should offer files: for an option's free value, and for a program and its arguments.
// Pure.
std::vector<Candidate> complete(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace lockstep::tools
