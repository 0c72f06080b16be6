#include "tools/lockstep/completion_command.h"

#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "tools/lockstep/completion.h"

namespace lockstep::tools {
namespace {

// The words travel on stdin, each ended by a zero byte, so that an option among them is not taken for one of
// `lockstep completion` itself. A line of the answer is a word, a tab and its description.
constexpr const char* kBashScript = R"sh(# bash completion for lockstep
#   eval "$(lockstep completion bash)"
_lockstep() {
  local candidates
  COMPREPLY=()
  candidates=$(printf '%s\0' "${COMP_WORDS[@]:1:COMP_CWORD}" |
    "${COMP_WORDS[0]/#~\//$HOME/}" completion words 2>/dev/null) || return 0
  [ -n "$candidates" ] || return 0
  local line
  while IFS= read -r line; do COMPREPLY+=("${line%%$'\t'*}"); done <<<"$candidates"
}
complete -o bashdefault -o default -F _lockstep lockstep
)sh";

constexpr const char* kZshScript = R"sh(#compdef lockstep
# zsh completion for lockstep
#   eval "$(lockstep completion zsh)"
_lockstep() {
  local -a lines candidates
  lines=("${(@f)$(printf '%s\0' "${(@)words[2,CURRENT]}" | ${(Q)words[1]} completion words 2>/dev/null)}")
  local line
  for line in $lines; do candidates+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}"); done
  if (( ${#candidates} )); then _describe 'lockstep' candidates; else _files; fi
}
if [ "$funcstack[1]" = "_lockstep" ]; then _lockstep "$@"; else compdef _lockstep lockstep; fi
)sh";

std::vector<std::string> words_from_stdin() {
  const std::string input(std::istreambuf_iterator<char>(std::cin), {});
  std::vector<std::string> words = base::split(input, '\0');
  if (words.back().empty()) words.pop_back();  // behind the last zero byte
  return words;
}

}  // namespace

void add_completion_command(CLI::App& app, CommandContext& context) {
  CLI::App* group =
      app.add_subcommand("completion", "Print the script that completes lockstep in your shell");
  const auto script = [&](const char* name, const char* description, const char* text) {
    on_run(*group->add_subcommand(name, description), context, [text] {
      std::cout << text;
      return kExitOk;
    });
  };
  script("bash", "For bash: eval \"$(lockstep completion bash)\" in ~/.bashrc", kBashScript);
  script("zsh", "For zsh: eval \"$(lockstep completion zsh)\" in ~/.zshrc, after compinit", kZshScript);

  CLI::App* words = group->add_subcommand("words", "What could come next; the scripts ask this");
  words->group("");  // hidden
  on_run(*words, context, [&app] {
    for (const Candidate& candidate : complete(app, words_from_stdin())) {
      std::cout << candidate.word << '\t' << candidate.description << '\n';
    }
    return kExitOk;
  });
}

}  // namespace lockstep::tools
