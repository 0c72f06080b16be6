// Groups: this process's place among all ranks of a job, and the groups that it makes with them.
//
// Thread safety: any thread; the ranks of a new group must make their groups in the same order.
// Lifetime: outlives its groups (this is checked).
// In a forked child every operation is kForked, and destruction touches nothing of the parent's.
// Implemented by World (world.h), which can do more, and over MPI (mpi/mpi_world.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"

namespace lockstep::backend {

struct GroupOptions {
  // Behaviour.
  std::optional<std::string> name = {};  // else made from the members
  Duration timeout = kDefaultOpTimeout;
};

// What a rank says when its group is split.
struct SplitBy {
  std::optional<int> color = {};  // ranks of one colour form a group; without one a rank is in none
  int key = 0;                    // orders the ranks of a colour; those with equal keys keep their order
};

class Groups {
 public:
  virtual ~Groups() = default;

  virtual Rank rank() const = 0;
  virtual WorldSize size() const = 0;

  // All ranks.
  virtual Backend& group() = 0;
  // `members` in the order of their ranks in the group; this rank is one of them.
  virtual Result<std::unique_ptr<Backend>> new_group(const std::vector<Rank>& members,
                                                     const GroupOptions& options = {}) = 0;
  // A collective of `parent`, one of these groups: every rank of it says its colour and key, and gets the
  // group of its colour; nothing if it has none.
  Result<std::unique_ptr<Backend>> split(Backend& parent, const SplitBy& by,
                                         const GroupOptions& options = {});
};

}  // namespace lockstep::backend

namespace lockstep {
using backend::GroupOptions;
using backend::Groups;
using backend::SplitBy;
}  // namespace lockstep
