#include "tools/lockstep/secret_command.h"

#include <iostream>
#include <memory>

#include "lockstep/base/process.h"
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

Result<int> make_secret(const std::string& path) {
  LOCKSTEP_ASSIGN(const std::string file, base::absolute_path(path));
  LOCKSTEP_TRY(Secret::generate().to_new_file(file));
  std::cout << "export LOCKSTEP_SECRET_FILE=" << shell_quoted(file) << std::endl;
  std::cerr
      << "Wrote a new secret, readable by you alone. Copy the file to every host of the job, and give it to "
         "lockstep run by --secret-file, or to every rank by this variable.\n";
  return kExitOk;
}

}  // namespace

void add_secret_command(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand("secret", "Make the secret file of a job");
  command->footer(
      "A job on several hosts needs one, the same on all of them: lockstep run --secret-file FILE, or\n"
      "LOCKSTEP_SECRET_FILE for ranks that something else starts. The file holds 64 hexadecimal digits and\n"
      "has mode 0600; an existing file is never overwritten. The line to export goes to stdout:\n"
      "  eval \"$(lockstep secret ~/job.secret)\"");
  auto path = std::make_shared<std::string>();
  command->add_option("FILE", *path, "Where to write it; must not exist")->required();
  on_run(*command, context, [path] { return make_secret(*path); });
}

}  // namespace lockstep::tools
