// What every kind of world checks of a new group's members, and how it names a group that is given no name.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"

namespace lockstep::backend {

// kInvalid unless `members` are different ranks of a world of `size`, and `rank` is one of them.
Status check_members(const std::vector<Rank>& members, Rank rank, WorldSize size);

// Tells groups apart: the same on all members, and no other group's.
std::uint64_t group_id(std::string_view name, const std::vector<Rank>& members);

// Names that are the same on all members, if they make their groups in the same order, and no two groups'.
// Thread safety: any thread.
class GroupNames {
 public:
  std::string next(const std::vector<Rank>& members);

 private:
  Mutex mutex_;
  std::map<std::vector<Rank>, int> made_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::backend
