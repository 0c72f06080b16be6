#include "lockstep/launch/program.h"

#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/base/text.h"

namespace lockstep::launch {
namespace {

using base::quoted;

bool is_folder(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

std::string variable(const Variables& environment, std::string_view name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

Result<std::string> check_executable(const std::string& path) {
  if (!exists(path)) return Status::invalid(cat("there is no program ", quoted(path)));
  if (is_folder(path)) return Status::unsupported(cat(quoted(path), " is a folder, not a program"));
  if (access(path.c_str(), X_OK) != 0) {
    return Status::unsupported(
        cat(quoted(path), " is not executable: run chmod +x on it, or give its interpreter first"));
  }
  return path;
}

Result<std::string> find_executable(const std::string& name, const Variables& environment) {
  if (name.find('/') != std::string::npos) return check_executable(name);
  const std::string path = variable(environment, "PATH");
  std::string not_executable;
  for (const std::string& folder : base::split(path.empty() ? "/usr/local/bin:/usr/bin:/bin" : path, ':')) {
    const std::string candidate = cat(folder.empty() ? "." : folder, "/", name);
    if (!exists(candidate) || is_folder(candidate)) continue;
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
    if (not_executable.empty()) not_executable = candidate;
  }
  if (!not_executable.empty()) return check_executable(not_executable);
  // The most likely mistake: a program of this folder without ./ before it.
  const char* hint = !name.empty() && exists(name) && !is_folder(name)
                         ? "; write ./ before it if you mean the file here"
                         : "";
  return Status::invalid(cat("there is no program ", quoted(name), " in PATH", hint));
}

Result<std::string> find_python(const RunOptions& options, const Variables& environment) {
  const std::string chosen = variable(environment, "PYTHON_EXEC");
  const std::string name = !options.python.empty() ? options.python : !chosen.empty() ? chosen : "python3";
  auto found = find_executable(name, environment);
  if (!found.ok()) return found.status().with_prefix("Python is needed for this program, and ");
  return found;
}

Result<Program> python_program(const RunOptions& options, const Variables& environment,
                               std::vector<std::string> what) {
  LOCKSTEP_ASSIGN(std::string python, find_python(options, environment));
  Program program{.path = python,
                  .argv = {python, "-u"}};  // unbuffered, so that lines come as they are printed
  program.argv.insert(program.argv.end(), what.begin(), what.end());
  program.argv.insert(program.argv.end(), options.command.begin() + 1, options.command.end());
  return program;
}

}  // namespace

Result<Program> resolve_program(const RunOptions& options, const Variables& environment) {
  const std::string& name = options.command.front();
  if (name.empty()) return Status::invalid("the name of the program is empty");
  if (options.kind == ProgramKind::kModule) return python_program(options, environment, {"-m", name});
  if (options.kind == ProgramKind::kByName && name.ends_with(".py")) {
    if (!exists(name)) return Status::invalid(cat("there is no Python script ", quoted(name)));
    if (access(name.c_str(), R_OK) != 0) return Status::unsupported(cat(quoted(name), " cannot be read"));
    return python_program(options, environment, {name});
  }
  LOCKSTEP_ASSIGN(std::string path, find_executable(name, environment));
  return Program{.path = std::move(path), .argv = options.command};
}

}  // namespace lockstep::launch
