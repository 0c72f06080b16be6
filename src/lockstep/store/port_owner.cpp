#include "lockstep/store/port_owner.h"

#include <filesystem>

#include "lockstep/base/text.h"

namespace lockstep::store {

bool is_another_program(pid_t pid) {
  std::error_code hidden;
  const auto theirs = std::filesystem::read_symlink(cat("/proc/", pid, "/exe"), hidden);
  const auto ours = hidden ? theirs : std::filesystem::read_symlink("/proc/self/exe", hidden);
  return !hidden && theirs != ours;
}

}  // namespace lockstep::store
