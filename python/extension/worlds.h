// The worlds that this process is in, and the groups that torch asks for in them.
//
// torch makes one backend object for each group. Ours of the default group joins a world, through the store
// that torch hands over; those of later groups are groups of that world, so that all share its memory and its
// connections. A group of ranks that have no such world (the default group is another backend's) is a world
// of its own.
//
// Thread safety: any thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "extension/completion_pool.h"
#include "extension/rank_names.h"
#include "extension/torch_store.h"
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
  Stay(std::shared_ptr<World> joined, std::shared_ptr<TorchStore> met_in);

  const std::shared_ptr<World> world;       // shared with its groups, which it outlives
  const std::shared_ptr<TorchStore> store;  // shared with the world; nothing if they met in one of ours
  const std::shared_ptr<CompletionPool> pool = std::make_shared<CompletionPool>();

  // The ranks of the world that were not shrunk away, as torch numbers them: 0 is the first of them.
  std::vector<Rank> left() const;
  void set_left(std::vector<Rank> ranks);
  // Counts the groups that are the world's own: the one that is left by shrink() goes, and the world stays.
  void add_own();
  // Whether it was the last, with which the world is left.
  bool remove_own();
  // What the core calls a group, on all its members. torch gives names again once their groups are destroyed,
  // and keys of those are still in the store.
  std::string unique_name(const std::string& name, const std::vector<Rank>& members);
  // How long a group that is destroyed may wait for what was issued: no longer at all after one of which
  // something has not ended, so that many groups together do not take many times as long.
  Duration patience_to_drain() const;
  void note_drained(bool has_ended);

 private:
  mutable Mutex mutex_;
  std::vector<Rank> left_ LOCKSTEP_GUARDED_BY(mutex_);
  int own_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  bool drains_ LOCKSTEP_GUARDED_BY(mutex_) = true;
  std::map<std::pair<std::string, std::vector<Rank>>, int> made_ LOCKSTEP_GUARDED_BY(mutex_);
};

struct GroupRequest {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::string name = {};
  std::vector<int> members = {};  // ranks of the default group; empty: it is the default group
  OptionsPtr options = {};
  bool rank_0_serves = false;  // torch has made the store, and it ends when rank 0 leaves
};

// Of a group, by rank in it.
struct Members {
  std::vector<Rank> world;
  std::vector<int> torchs;  // ranks of the default group
};

// What a group is to its world, and so what becomes of that when it shrinks.
enum class Standing : std::uint8_t {
  kDefault,  // torch's default group, or one that is made by hand: its world shrinks, and is numbered anew
  kWorld,    // beside a default group of another backend: its world shrinks, and torch's numbers stay
  kSome,     // of some ranks of a world, or all: the world stays as it is
};

struct MadeGroup {
  Standing standing;
  std::shared_ptr<Stay> stay;
  std::shared_ptr<tensor::GroupState> state;
  std::shared_ptr<const RankNames> names;  // shared with what runs in the group
};

// Before the interpreter ends, on its thread: leaves all groups, and waits a little for the calls of other
// threads, which do not return any more, for works, for what hangs on futures, and for calls that were
// interrupted, which keep their world. A thread that asks for the GIL after that is ended by Python, and
// takes the process along.
void leave_all();

// Called by all members. Throws torch's exceptions.
MadeGroup make_group(const GroupRequest& request);
// The same, of ranks that need not be in one world: they join one of their own.
MadeGroup make_world(const GroupRequest& request);
// A group of some members of the same world.
MadeGroup make_group_in(const std::shared_ptr<Stay>& stay, const Members& members, const std::string& name,
                        const OptionsPtr& options);
// The group of `left`, called by them, where one is shrunk that is no group of some. All groups of the world
// end. Who is lost is not in it.
MadeGroup shrink_world(const std::shared_ptr<Stay>& stay, Standing standing, const Members& left,
                       const OptionsPtr& options);

}  // namespace lockstep::python
