// A barrier through the store, which can say who did not come: monitored_barrier() of groups that have one.
#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/backend/membership.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"

namespace lockstep::backend {

// `sequence` is the operation's number; no two barriers of a group have the same. While it waits, what `look`
// gives ends it. kMissingRanks, with all of them, when the deadline passes.
Status meet_in_store(const Membership& who, std::uint64_t sequence, const Deadline& deadline,
                     const std::function<Status()>& look);

}  // namespace lockstep::backend
