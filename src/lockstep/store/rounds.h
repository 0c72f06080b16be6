// What a round of a rendezvous is as a whole: who holds a slot in it, and how it and its store end.
//
// Thread safety: free functions, any thread.
#pragma once

#include <functional>
#include <set>

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/store/member.h"
#include "lockstep/store/round_keys.h"
#include "lockstep/store/store.h"

namespace lockstep::store {

Result<std::set<Rank>> ranks_with_slots(Store& store, const RoundKeys& keys, const Deadline& deadline);

// Whether a process that holds a slot there is not known to be dead.
Result<bool> anyone_may_live(Store& store, const RoundKeys& keys,
                             const std::function<bool(const Member&)>& is_gone, const Deadline& deadline);

// Whoever looks at it from now on goes to the next.
Status close_round(Store& store, const RoundKeys& keys, const Deadline& deadline);

// Before the rank that serves the store takes it away: whoever came again too early, and waits there for a
// world that cannot be, looks for the next store instead.
Status end_store(Store& store, const RoundKeys& keys, const Deadline& deadline);

}  // namespace lockstep::store
