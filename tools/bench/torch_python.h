// The Python whose torch a bench measures.
//
// Thread safety: a free function, any thread.
#pragma once

#include <string>

#include "lockstep/base/status.h"
#include "tools/lockstep/command.h"

namespace lockstep::bench {

// The interpreter that was given by --python, else the one that the build has recorded, else python3.
// kUnsupported, with what to do about it, if that has no torch. `peer` is what --against calls it.
Result<std::string> python_with_torch(const tools::CommandContext& context, const std::string& given,
                                      const std::string& peer);

}  // namespace lockstep::bench
