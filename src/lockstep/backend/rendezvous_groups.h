// Groups of ranks that have met by rendezvous(), and how a backend of one's own gets them.
//
// Who writes a backend writes a Backend (backend.h) for one group, and a function that makes it. The ranks
// meet here, and here their groups are named and checked:
//
//   Result<std::unique_ptr<Backend>> make_mine(const GroupPlan& plan);
//   auto groups = lockstep::join_groups(make_mine, {}, environment);
//
// Membership (membership.h) answers what a Backend is asked of its ranks, and OpQueue (op_queue.h) keeps its
// operations in order. examples/06_own_backend is a whole one.
#pragma once

#include <functional>
#include <memory>

#include "lockstep/backend/groups.h"
#include "lockstep/backend/membership.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/store/rendezvous.h"

namespace lockstep::backend {

class RendezvousGroups : public Groups {
 public:
  virtual const Rendezvous& rendezvous() const = 0;
  Rank rank() const final { return rendezvous().rank; }
  WorldSize size() const final { return rendezvous().world_size; }
  Rank local_rank() const final { return rendezvous().local_rank; }
  WorldSize local_size() const final { return rendezvous().local_size; }
};

// Called by all members of the group, and by nobody else. The plan's store is always there.
using MakeGroup = std::function<Result<std::unique_ptr<Backend>>(const GroupPlan& plan)>;

struct JoinOptions {
  // Behaviour.
  RendezvousOptions rendezvous = {};
  Duration timeout = kDefaultOpTimeout;  // of an operation
};

// kInvalid, kTimeout and the rest as rendezvous(); else what `make` gives for the group of all ranks, whose
// name is "world".
Result<std::unique_ptr<RendezvousGroups>> join_groups(MakeGroup make, const JoinOptions& options,
                                                      const Environment& environment);

}  // namespace lockstep::backend

namespace lockstep {
using backend::join_groups;
using backend::JoinOptions;
using backend::MakeGroup;
using backend::RendezvousGroups;
}  // namespace lockstep
