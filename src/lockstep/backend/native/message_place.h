// Where a message is: what its error says besides what went wrong.
//
// Thread safety: a value.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "lockstep/base/status.h"
#include "lockstep/base/types.h"

namespace lockstep::backend {

// As those hear it who are still there; `where` comes first in the text. The cause names who has left.
Status left_the_group(const Status& status, Cause cause, std::string_view where = "");

struct MessagePlace {
  std::string op;
  std::uint64_t number = 0;  // of the rank's messages
  Rank rank = {};            // in the world
  std::string group = {};
  std::function<bool(Rank)> has_left = {};  // as NativeGroupParts'

  // The error of a message with where it was met. The one that has ended the group names another place, or
  // none. Without memory for that the error is given as it is.
  Status describe(const Status& status) const;

 private:
  Status describe_error(const Status& status) const;
  // What the messenger says of a message begins with this rank; groups have numbers there.
  std::string in_group(std::string_view said) const;
};

}  // namespace lockstep::backend
