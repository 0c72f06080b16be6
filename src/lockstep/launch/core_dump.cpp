#include "lockstep/launch/core_dump.h"

#include <glob.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>

#include "lockstep/base/text.h"

namespace lockstep::launch {
namespace {

constexpr std::size_t kCommLength = 15;  // the kernel's own limit of a process's name

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The newest file that matches.
std::string newest(const std::string& pattern) {
  glob_t found{};
  std::string best;
  time_t best_time = 0;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (std::size_t i = 0; i < found.gl_pathc; ++i) {
      struct stat info {};
      if (stat(found.gl_pathv[i], &info) == 0 && S_ISREG(info.st_mode) && info.st_mtime >= best_time) {
        best = found.gl_pathv[i];
        best_time = info.st_mtime;
      }
    }
  }
  globfree(&found);
  return best;
}

bool dumps_core(int signal) {
  return signal == SIGSEGV || signal == SIGABRT || signal == SIGBUS || signal == SIGILL || signal == SIGFPE ||
         signal == SIGSYS || signal == SIGTRAP;
}

// A pattern must not take the text of a name for its own.
std::string literal(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '*' || c == '?' || c == '[' || c == '\\') out += '\\';
    out += c == '/' ? '!' : c;  // as the kernel does
  }
  return out;
}

}  // namespace

std::string core_dump_glob(std::string_view pattern, bool uses_pid, const CrashedProcess& process) {
  if (pattern.empty() || pattern.front() == '|') return {};
  std::string out;
  bool has_pid = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') {
      out += pattern[i];
      continue;
    }
    if (++i == pattern.size()) break;  // a lone % at the end is dropped
    switch (pattern[i]) {
      case '%':
        out += '%';
        break;
      case 'p':
        out += cat(process.pid);
        has_pid = true;
        break;
      case 'e':
        out += literal(std::string_view(process.name).substr(0, kCommLength));
        break;
      case 'f':
        out += literal(process.name);
        break;
      case 'h':
        out += literal(process.host);
        break;
      case 's':
        out += cat(process.signal);
        break;
      default:
        out += '*';
        break;
    }
  }
  if (uses_pid && !has_pid) out += cat(".", process.pid);
  return out.starts_with('/') ? out : cat(process.folder, "/", out);
}

std::string core_dump_text(const CrashedProcess& process, bool dumped) {
  const std::string pattern = first_line("/proc/sys/kernel/core_pattern");
  if (!dumped) {
    rlimit limit{};
    if (dumps_core(process.signal) && getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_cur == 0) {
      return "none was written, because its limit is 0; run ulimit -c unlimited before the launcher to get "
             "one";
    }
    return {};
  }
  if (!pattern.empty() && pattern.front() == '|') {
    const std::string program = base::split(pattern.substr(1), ' ').front();
    const bool systemd = program.find("systemd-coredump") != std::string::npos;
    return cat("handed to ", program, systemd ? cat("; see coredumpctl info ", process.pid) : "");
  }
  const std::string glob =
      core_dump_glob(pattern, first_line("/proc/sys/kernel/core_uses_pid") == "1", process);
  const std::string path = newest(glob);
  return path.empty() ? cat("written, but not found as ", glob) : path;
}

}  // namespace lockstep::launch
