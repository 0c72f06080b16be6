// Runs one collective on a group: chooses the algorithm and walks through the call's buffers.
//
// Thread safety: as the Communicator: one operation at a time.
// Errors: the first one of any rank is recorded and returned by all; then the group is dead.
#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/collective/call.h"
#include "lockstep/collective/helpers.h"
#include "lockstep/transport/communicator.h"

namespace lockstep::collective {

// `call` has been checked.
Status execute(transport::Communicator& communicator, const Call& call, const Fingerprint& fingerprint,
               const Deadline& deadline, const Means& means);
// The same for a group of one: no memory is shared, nothing is waited for.
void execute_alone(const Call& call);
// The same for an operation that meets the others elsewhere, as in a store: `meet` does it, and ends with
// what `look` finds, which it asks while it waits. One that is in another operation is found as everywhere;
// to those of other hosts `look` makes links, from the second time on.
Status execute_elsewhere(transport::Communicator& communicator, const Fingerprint& fingerprint,
                         const Deadline& deadline,
                         const std::function<Status(const std::function<Status()>& look)>& meet);

}  // namespace lockstep::collective
