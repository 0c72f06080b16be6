#include "lockstep/store/port_owner.h"

#include <filesystem>

#include "lockstep/base/text.h"

namespace lockstep::store {
namespace {

// Of a program that was built anew while it ran, too. Empty if that cannot be seen.
std::string program_name(std::string_view process) {
  constexpr std::string_view kBuiltAnew = " (deleted)";
  std::error_code hidden;
  std::string name = std::filesystem::read_symlink(cat("/proc/", process, "/exe"), hidden).filename();
  if (name.ends_with(kBuiltAnew)) name.resize(name.size() - kBuiltAnew.size());
  return name;
}

}  // namespace

bool is_another_program(pid_t pid) {
  const std::string theirs = program_name(cat(pid));
  return !theirs.empty() && theirs != program_name("self");
}

}  // namespace lockstep::store
