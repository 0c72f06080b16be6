#include "tools/lockstep/secret_command.h"

#include <iostream>
#include <memory>

#include "lockstep/base/secret.h"
#include "lockstep/base/text.h"

namespace lockstep::tools {
namespace {

// Quoted for a POSIX shell.
std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

Result<int> make_secret(const std::filesystem::path& path) {
  const std::filesystem::path absolute = std::filesystem::absolute(path);
  LOCKSTEP_TRY(Secret::generate().to_new_file(absolute.string()));
  std::cout << "export LOCKSTEP_SECRET_FILE=" << shell_quoted(absolute.string()) << std::endl;
  std::cerr
      << "Wrote a new secret, readable by you alone. Copy the file to every host of the job and set this "
         "variable for every rank.\n";
  return kExitOk;
}

}  // namespace

void add_secret_command(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand("secret", "Make the secret file of a job");
  command->footer(
      "Only jobs that span hosts and are not started by 'lockstep run' need one. The file holds 64\n"
      "hexadecimal digits and has mode 0600; an existing file is never overwritten. The line to export\n"
      "goes to stdout:  eval \"$(lockstep secret ~/job.secret)\"");
  auto path = std::make_shared<std::filesystem::path>();
  command->add_option("FILE", *path, "Where to write it; must not exist")->required();
  on_run(*command, context, [path] { return make_secret(*path); });
}

}  // namespace lockstep::tools
