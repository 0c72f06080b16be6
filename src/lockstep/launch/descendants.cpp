#include "lockstep/launch/descendants.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "lockstep/base/text.h"

namespace lockstep::launch {
namespace {

// /proc/PID/stat is "pid (name) state ppid ..."; a name may hold anything, also ") ".
std::optional<pid_t> parent_of(const std::filesystem::path& folder) {
  std::ifstream file(folder / "stat");
  std::string text;
  std::getline(file, text);
  const auto end_of_name = text.rfind(')');
  if (end_of_name == std::string::npos) return std::nullopt;
  const auto fields = base::split(base::trim(std::string_view(text).substr(end_of_name + 1)), ' ');
  return fields.size() < 2 ? std::nullopt : base::parse_integer<pid_t>(fields[1]);
}

// For kernels without CONFIG_PROC_CHILDREN.
std::vector<pid_t> children_by_scan() {
  std::vector<pid_t> children;
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc", error), end; !error && at != end;
       at.increment(error)) {
    const auto pid = base::parse_integer<pid_t>(at->path().filename().string());
    if (pid && parent_of(at->path()) == getpid()) children.push_back(*pid);
  }
  return children;
}

}  // namespace

std::vector<pid_t> child_processes() {
  std::vector<pid_t> children;
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc/self/task", error), end; !error && at != end;
       at.increment(error)) {
    std::ifstream file(at->path() / "children");
    if (!file) return children_by_scan();
    for (pid_t pid = 0; file >> pid;) children.push_back(pid);
  }
  std::sort(children.begin(), children.end());
  return children;
}

}  // namespace lockstep::launch
