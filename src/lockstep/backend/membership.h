// Who is in a group, and what every backend asks of that before it does anything.
//
// Thread safety: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/store/store.h"

namespace lockstep::backend {

// A group that is to be made.
struct GroupPlan {
  std::string name;           // the same on all members, and no other group's of the same members
  Rank rank;                  // this rank's, in the group
  std::vector<Rank> members;  // ranks of the world, by rank in the group
  Duration timeout = kDefaultOpTimeout;
  // What its members may say to each other: keys here are this group's alone. Nothing where the ranks have
  // met without a store.
  std::shared_ptr<store::Store> store = {};
};

class Membership {
 public:
  Membership(GroupPlan plan, const Clock& clock);

  Rank rank() const { return plan_.rank; }
  WorldSize size() const { return WorldSize{static_cast<int>(plan_.members.size())}; }
  const std::string& name() const { return plan_.name; }
  const std::vector<Rank>& members() const { return plan_.members; }
  Rank world_rank(Rank member) const { return plan_.members.at(static_cast<std::size_t>(member.value)); }
  // This rank's in the world.
  Rank own() const { return world_rank(plan_.rank); }
  // For errors: "rank 2: group \"pair\"".
  std::string text() const;
  const std::shared_ptr<store::Store>& store() const { return plan_.store; }

  Duration timeout() const { return timeout_.load(); }
  void set_timeout(Duration timeout) { timeout_ = timeout; }
  Deadline deadline_of(const OpOptions& options) const {
    return options.deadline ? *options.deadline : clock_.in(timeout_.load());
  }

  // Whether this process was forked after the group was made.
  bool in_forked_child() const;
  // kForked then.
  Status refuse_in_forked_child(std::string_view op) const;
  // kInvalid for a call that can be seen to be wrong here.
  Status admit(const Call& call) const;

 private:
  const GroupPlan plan_;
  const Clock& clock_;
  const std::uint64_t fork_generation_;
  std::atomic<Duration> timeout_;
};

}  // namespace lockstep::backend

namespace lockstep {
using backend::GroupPlan;
using backend::Membership;
}  // namespace lockstep
