// The worlds that this process is in, and the groups that torch asks for in them.
//
// torch makes one backend object for each group. Ours of the default group joins a world, through the store
// that torch hands over; those of later groups are groups of that world, so that all share its memory and its
// connections. A group of ranks that have no such world (the default group is another backend's) is a world
// of its own.
//
// Thread safety: any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "extension/completion_pool.h"
#include "lockstep/backend/world.h"
#include "lockstep/base/mutex.h"
#include "lockstep/tensor/group_state.h"

namespace lockstep::python {

// What the user may say, as pg_options.
struct Options final : c10d::Backend::Options {
  explicit Options(std::chrono::milliseconds of_operations = kBackendDefaultTimeout)
      : c10d::Backend::Options("lockstep", of_operations) {}

  // As in WorldOptions, which has the defaults; they count where a world is made, not for its later groups.
  std::optional<std::chrono::milliseconds> stall_after = {};
  std::optional<std::uint64_t> heap_capacity = {};  // bytes
  std::optional<int> threads = {};
};
using OptionsPtr = c10::intrusive_ptr<Options>;

// A world and what its groups share.
class Stay {
 public:
  explicit Stay(std::shared_ptr<World> joined);

  const std::shared_ptr<World> world;  // shared with its groups, which it outlives
  const std::shared_ptr<CompletionPool> pool = std::make_shared<CompletionPool>();

  // The ranks of the world that were not shrunk away, as torch numbers them: 0 is the first of them.
  std::vector<Rank> left() const;
  void set_left(std::vector<Rank> ranks);

 private:
  mutable Mutex mutex_;
  std::vector<Rank> left_ LOCKSTEP_GUARDED_BY(mutex_);
};

struct GroupRequest {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::string name = {};
  std::vector<int> members = {};  // ranks of the default group; empty: it is the default group
  OptionsPtr options = {};
};

struct MadeGroup {
  std::shared_ptr<Stay> stay;
  std::shared_ptr<tensor::GroupState> state;
};

// Before the interpreter ends: leaves all groups, and waits a little for their works and what hangs on
// futures. A thread that asks for the GIL after that is ended by Python, and takes the process along.
void leave_all();

// Called by all members. Throws torch's exceptions.
MadeGroup make_group(const GroupRequest& request);
// A group of `world_ranks` in the same world.
MadeGroup make_group_in(const std::shared_ptr<Stay>& stay, const std::vector<Rank>& world_ranks,
                        const std::string& name, const OptionsPtr& options);
// The group of those that are left, without `exclude`, ranks of the world. All groups of the world end.
MadeGroup shrink_world(const std::shared_ptr<Stay>& stay, const std::vector<Rank>& exclude,
                       const OptionsPtr& options);

}  // namespace lockstep::python
