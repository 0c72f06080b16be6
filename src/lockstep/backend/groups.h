// Groups: this process's place among all ranks of a job, and the groups that it makes with them.
//
// Thread safety: any thread; the ranks of a new group must make their groups in the same order.
// Lifetime: destruction ends its groups (kClosed), in use or not; those of a backend of one's own live on.
// In a forked child every operation is kForked, and destruction touches nothing of the parent's.
// Implemented by World (world.h), which can do more, over MPI (mpi/mpi_world.h), and for backends of one's
// own (rendezvous_groups.h).
#pragma once

#include <cstdint>
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

// For backends that do not compare by themselves what the ranks call (mpi, borrowed): whether they do it
// before each collective, by one small exchange more, which finds ranks that call different operations,
// types, sizes, reductions or roots (kDesync). Without it such calls give an error of the library below,
// wrong bytes, or a timeout.
enum class CompareCalls : std::uint8_t { kAlways, kNever };

class Groups {
 public:
  virtual ~Groups() = default;

  virtual Rank rank() const = 0;
  virtual WorldSize size() const = 0;
  // Among the ranks of this host.
  virtual Rank local_rank() const = 0;
  virtual WorldSize local_size() const = 0;

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
using backend::CompareCalls;
using backend::GroupOptions;
using backend::Groups;
using backend::SplitBy;
}  // namespace lockstep
