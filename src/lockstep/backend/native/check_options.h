// Whether the numbers of a world's options can be worked with.
//
// Thread safety: a pure function.
#pragma once

#include "lockstep/backend/world.h"
#include "lockstep/base/status.h"

namespace lockstep::backend {

// Of WorldOptions::staging, whatever the number of ranks.
constexpr Bytes kLeastStaging = Bytes::kib(16);

// kInvalid, in one sentence, for `streams` or a `staging` that no operation could go on with. `neighbours`:
// the ranks of this host, this one included.
Status check_options(const WorldOptions& options, int neighbours);

}  // namespace lockstep::backend
