#include "lockstep/backend/rendezvous_groups.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/backend/members.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/text.h"
#include "lockstep/store/prefix_store.h"

namespace lockstep::backend {
namespace {

class OwnGroups final : public RendezvousGroups {
 public:
  OwnGroups(MakeGroup make, Rendezvous rendezvous)
      : make_(std::move(make)),
        rendezvous_(std::move(rendezvous)),
        fork_generation_(base::fork_generation()) {}

  const Rendezvous& rendezvous() const override { return rendezvous_; }
  Backend& group() override { return *all_; }

  Status make_all(Duration timeout) {
    std::vector<Rank> everyone;
    everyone.reserve(static_cast<std::size_t>(rendezvous_.world_size.value));
    for (int i = 0; i < rendezvous_.world_size.value; ++i) everyone.emplace_back(i);
    LOCKSTEP_ASSIGN(all_, new_group(everyone, {.name = "world", .timeout = timeout}));
    return {};
  }

  Result<std::unique_ptr<Backend>> new_group(const std::vector<Rank>& members,
                                             const GroupOptions& options) override {
    if (base::fork_generation() != fork_generation_)
      return Status::invalid("a group was asked of a world that belongs to the parent of this forked process",
                             {.failure = Failure::kForked, .rank = rendezvous_.rank});
    LOCKSTEP_TRY(check_members(members, rendezvous_.rank, rendezvous_.world_size));
    const auto own = std::find(members.begin(), members.end(), rendezvous_.rank);
    GroupPlan plan{.name = options.name ? *options.name : names_.next(members),
                   .rank = Rank(static_cast<int>(own - members.begin())),
                   .members = members,
                   .timeout = options.timeout};
    plan.store =
        std::make_shared<store::PrefixStore>(cat("group/", group_id(plan.name, members)), rendezvous_.store);
    return make_(plan);
  }

 private:
  const MakeGroup make_;
  const Rendezvous rendezvous_;
  const std::uint64_t fork_generation_;
  GroupNames names_;
  std::unique_ptr<Backend> all_;
};

}  // namespace

Result<std::unique_ptr<RendezvousGroups>> join_groups(MakeGroup make, const JoinOptions& options,
                                                      const Environment& environment) {
  LOCKSTEP_ASSIGN(Rendezvous met, rendezvous(options.rendezvous, environment));
  auto groups = std::make_unique<OwnGroups>(std::move(make), std::move(met));
  LOCKSTEP_TRY(groups->make_all(options.timeout));
  return std::unique_ptr<RendezvousGroups>(std::move(groups));
}

}  // namespace lockstep::backend
