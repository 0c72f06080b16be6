// Barriers through the store, which can say who did not come: monitored_barrier() of groups that have one.
#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/backend/membership.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"

namespace lockstep::backend {

// Those of one group, one after the other.
//
// Thread safety: one at a time.
// Does not: leave keys behind in the store, but for those of the last one, and of one that has failed.
class StoreBarriers {
 public:
  // `who` outlives it.
  explicit StoreBarriers(const Membership& who) : who_(who) {}

  // `sequence` is the operation's number; no two barriers of a group have the same. While it waits, what
  // `look` gives ends it. kMissingRanks, with all of them, when the deadline passes.
  Status meet(std::uint64_t sequence, const Deadline& deadline, const std::function<Status()>& look);

 private:
  // Who did not come; ok if all did.
  Status find_missing(std::uint64_t sequence) const;
  // A call of the store may take a little longer than the barrier itself.
  Deadline soon() const;

  const Membership& who_;
  std::uint64_t met_ = 0;  // the number of the last one that all have come to, if there was one
};

}  // namespace lockstep::backend
