// Barriers through the store, which can say who did not come: monitored_barrier() of groups that have one.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

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

  // What a barrier asks besides the store.
  struct Others {
    // While it waits, what this gives ends it.
    std::function<Status()> look;
    // Who is known not to have come, ranks of the world; asked where the store does not answer.
    std::function<std::vector<Rank>()> absent = {};
  };
  // `sequence` is the operation's number; no two barriers of a group have the same. When the deadline passes
  // kMissingRanks, with all of them; or, a second later at most, with those that are known to be absent if
  // the store does not answer. kStoreLost if nobody is.
  Status meet(std::uint64_t sequence, const Deadline& deadline, const Others& others);

 private:
  // Who did not come; ok if all did.
  Status find_missing(std::uint64_t sequence, const Others& others) const;
  Status missing(std::uint64_t sequence, const std::vector<Rank>& ranks, std::string_view known_by) const;
  // The store does not answer, as `met` says.
  Status without_store(std::uint64_t sequence, const Others& others, const Status& met) const;

  const Membership& who_;
  std::uint64_t met_ = 0;  // the number of the last one that all have come to, if there was one
};

}  // namespace lockstep::backend
