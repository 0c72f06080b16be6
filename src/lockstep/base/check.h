// LOCKSTEP_CHECK: for what only a bug in Lockstep can break. Bad input, peers and the system get a Status.
//
// A failed check prints the condition, the place and the message to stderr and aborts, in every build type.
#pragma once

#include <source_location>
#include <string_view>

namespace lockstep::base {

[[noreturn]] void check_failed(std::string_view condition, std::string_view message,
                               std::source_location where = std::source_location::current());

}  // namespace lockstep::base

#define LOCKSTEP_CHECK(condition, message)                   \
  do {                                                       \
    if (!(condition)) [[unlikely]]                           \
      ::lockstep::base::check_failed(#condition, (message)); \
  } while (false)
