// What a spawned rank is told: which function of the program it runs, and with what. Format:
// docs/wire/spawn.md.
//
// Thread safety: free functions, any thread.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// Of all its bytes; looked at before any of them is read.
constexpr std::size_t kMaxAssignment = 64U << 20;

struct Assignment {
  std::string function = {};
  std::vector<std::string> arguments = {};

  bool operator==(const Assignment&) const = default;
};

// kInvalid beyond kMaxAssignment.
Result<Buffer> assignment_to_bytes(const Assignment& assignment);
// kInvalid for bytes that are no assignment, or more than one.
Result<Assignment> assignment_from_bytes(ByteView bytes);

}  // namespace lockstep::launch
