#include "lockstep/backend/mpi/mpi_world.h"

#include <mpi.h>

#include <algorithm>
#include <cstring>

#include "lockstep/backend/living_groups.h"
#include "lockstep/backend/members.h"
#include "lockstep/backend/mpi/library.h"
#include "lockstep/backend/mpi/mpi_group.h"
#include "lockstep/backend/mpi/transfer.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"

namespace lockstep::backend {
namespace {

using mpi::abandon;
using mpi::status_of;
using mpi::Transfer;

class MpiWorld final : public Groups {
 public:
  MpiWorld(const MpiOptions& options, const Clock& clock)
      : options_(options), clock_(clock), fork_generation_(base::fork_generation()) {}
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;
  ~MpiWorld() override;

  Status join();

  Rank rank() const override { return rank_; }
  WorldSize size() const override { return size_; }
  Rank local_rank() const override { return local_rank_; }
  WorldSize local_size() const override { return local_size_; }
  Backend& group() override { return *all_; }
  Result<std::unique_ptr<Backend>> new_group(const std::vector<Rank>& members,
                                             const GroupOptions& options) override;

 private:
  // Who shares memory with this rank: MPI's words for a host.
  Status find_neighbours();
  // Returns when all of them are here: what follows is MPI's, which has no deadline.
  Status meet(const std::vector<Rank>& members, std::uint64_t id, int tag);
  Result<std::unique_ptr<Backend>> wrap(MPI_Comm comm, const std::vector<Rank>& members,
                                        const GroupOptions& options, std::uint64_t id);

  const MpiOptions options_;
  const Clock& clock_;
  const std::uint64_t fork_generation_;
  Rank rank_;
  WorldSize size_;
  Rank local_rank_;
  WorldSize local_size_;
  int largest_tag_ = 0;
  MPI_Comm meeting_ = MPI_COMM_NULL;  // all ranks; where groups are made
  GroupNames names_;
  // Shared with them: the world may be destroyed first.
  const std::shared_ptr<LivingGroups<mpi::MpiGroup>> groups_ =
      std::make_shared<LivingGroups<mpi::MpiGroup>>();
  std::unique_ptr<Backend> all_;
};

MpiWorld::~MpiWorld() {
  all_.reset();
  if (base::fork_generation() != fork_generation_) return;
  (void)groups_->for_each([](mpi::MpiGroup& group) {
    group.leave("destroyed its world, and with it");
    return Status();
  });
  if (meeting_ != MPI_COMM_NULL) MPI_Comm_free(&meeting_);
}

Status MpiWorld::join() {
  LOCKSTEP_TRY(mpi::start_library());
  LOCKSTEP_TRY(status_of(MPI_Comm_rank(MPI_COMM_WORLD, &rank_.value), "MPI_Comm_rank"));
  LOCKSTEP_TRY(status_of(MPI_Comm_size(MPI_COMM_WORLD, &size_.value), "MPI_Comm_size"));
  if (options_.rank.value_or(rank_) != rank_ || options_.world_size.value_or(size_) != size_) {
    return Status::invalid(
        cat("MPI says that this is rank ", rank_, " of ", size_, ", but the caller that it is rank ",
            options_.rank.value_or(rank_), " of ", options_.world_size.value_or(size_),
            ". With the mpi backend ranks are MPI's: start them with mpirun, and give no others."),
        {.failure = Failure::kWorldSizeMismatch, .rank = rank_});
  }
  largest_tag_ = mpi::largest_tag();
  const Deadline deadline = clock_.in(options_.join_timeout);
  // Made by all ranks at once; that is where a rank that does not come is noticed.
  const auto duplicated = std::make_shared<Transfer>(nullptr);
  LOCKSTEP_TRY(
      status_of(MPI_Comm_idup(MPI_COMM_WORLD, &meeting_, duplicated->next_request()), "MPI_Comm_idup"));
  if (const Status status = duplicated->wait(deadline, [] { return Status(); }); !status.ok()) {
    meeting_ = MPI_COMM_NULL;
    abandon(duplicated);
    return status.with_prefix(cat("rank ", rank_, ": a rank of the ", size_, " has not called join_mpi(): "));
  }
  LOCKSTEP_TRY(status_of(MPI_Comm_set_errhandler(meeting_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
  LOCKSTEP_TRY(find_neighbours());
  std::vector<Rank> everyone;
  everyone.reserve(static_cast<std::size_t>(size_.value));
  for (int i = 0; i < size_.value; ++i) everyone.emplace_back(i);
  MPI_Comm comm = MPI_COMM_NULL;
  LOCKSTEP_TRY(status_of(MPI_Comm_dup(meeting_, &comm), "MPI_Comm_dup"));
  LOCKSTEP_ASSIGN(all_, wrap(comm, everyone, {.name = "world", .timeout = options_.timeout},
                             group_id("world", everyone)));
  return {};
}

Status MpiWorld::find_neighbours() {
  MPI_Comm host = MPI_COMM_NULL;
  LOCKSTEP_TRY(status_of(MPI_Comm_split_type(meeting_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
                         "MPI_Comm_split_type"));
  Status found = status_of(MPI_Comm_rank(host, &local_rank_.value), "MPI_Comm_rank");
  if (found.ok()) found = status_of(MPI_Comm_size(host, &local_size_.value), "MPI_Comm_size");
  MPI_Comm_free(&host);
  return found;
}

Status MpiWorld::meet(const std::vector<Rank>& members, std::uint64_t id, int tag) {
  const auto transfer = std::make_shared<Transfer>(nullptr);
  const ByteView own(transfer->readable(std::as_bytes(std::span(&id, 1))), sizeof(id));
  std::vector<ByteSpan> theirs;
  for (const Rank member : members) {
    theirs.push_back(transfer->memory(sizeof(id)));
    if (member != rank_) LOCKSTEP_TRY(transfer->receive(theirs.back(), member.value, tag, meeting_));
  }
  for (const Rank member : members)
    if (member != rank_) LOCKSTEP_TRY(transfer->send(own, member.value, tag, meeting_));
  Status status = transfer->wait(clock_.in(options_.join_timeout), [] { return Status(); });
  if (!status.ok()) {
    std::vector<Rank> missing;
    for (const int peer : transfer->withdraw_receives()) missing.emplace_back(peer);
    std::sort(missing.begin(), missing.end());
    if (transfer->under_way()) abandon(transfer);
    if (status.code() != Code::kTimeout) return status;
    return Status::timeout(
        cat("rank ", rank_, ": rank ", base::ranks_text(missing), " did not come to make a group"),
        {.failure = Failure::kMissingRanks, .rank = rank_, .op = "new_group", .missing = missing});
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i] == rank_ || std::memcmp(theirs[i].data(), &id, sizeof(id)) == 0) continue;
    return Status(Code::kInvalid,
                  cat("rank ", rank_, ": rank ", members[i],
                      " makes another group at the same time; all "
                      "members make their groups in the same order"),
                  {.failure = Failure::kDesync, .rank = rank_, .peer = members[i], .op = "new_group"});
  }
  return {};
}

Result<std::unique_ptr<Backend>> MpiWorld::new_group(const std::vector<Rank>& members,
                                                     const GroupOptions& options) {
  if (base::fork_generation() != fork_generation_)
    return Status::invalid("a group was asked of a world that belongs to the parent of this forked process",
                           {.failure = Failure::kForked, .rank = rank_});
  LOCKSTEP_TRY(check_members(members, rank_, size_));
  GroupOptions named = options;
  if (!named.name) named.name = names_.next(members);
  const std::uint64_t id = group_id(*named.name, members);
  const int tag = static_cast<int>(id % static_cast<std::uint64_t>(largest_tag_));
  LOCKSTEP_TRY(meet(members, id, tag));
  std::vector<int> ranks;
  ranks.reserve(members.size());
  for (const Rank member : members) ranks.push_back(member.value);
  MPI_Group everyone = MPI_GROUP_NULL;
  MPI_Group some = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  LOCKSTEP_TRY(status_of(MPI_Comm_group(meeting_, &everyone), "MPI_Comm_group"));
  Status made = status_of(MPI_Group_incl(everyone, static_cast<int>(ranks.size()), ranks.data(), &some),
                          "MPI_Group_incl");
  if (made.ok()) {
    made = status_of(MPI_Comm_create_group(meeting_, some, tag, &comm), "MPI_Comm_create_group");
    MPI_Group_free(&some);
  }
  MPI_Group_free(&everyone);
  LOCKSTEP_TRY(made);
  return wrap(comm, members, named, id);
}

Result<std::unique_ptr<Backend>> MpiWorld::wrap(MPI_Comm comm, const std::vector<Rank>& members,
                                                const GroupOptions& options, std::uint64_t id) {
  const auto own = std::find(members.begin(), members.end(), rank_);
  mpi::MpiGroupParts parts{.plan = {.name = *options.name,
                                    .rank = Rank(static_cast<int>(own - members.begin())),
                                    .members = members,
                                    .timeout = options.timeout},
                           .id = id,
                           .compare_calls = options_.compare_calls,
                           .comm = comm,
                           .largest_tag = largest_tag_,
                           .on_leave = [groups = groups_](mpi::MpiGroup* group) { groups->remove(group); }};
  LOCKSTEP_TRY(status_of(MPI_Comm_dup(comm, &parts.own_comm), "MPI_Comm_dup"));
  LOCKSTEP_ASSIGN(std::unique_ptr<mpi::MpiGroup> group, mpi::MpiGroup::make(std::move(parts), clock_));
  groups_->add(group.get());
  return std::unique_ptr<Backend>(std::move(group));
}

}  // namespace

Result<std::unique_ptr<Groups>> join_mpi(const MpiOptions& options) {
  LOCKSTEP_ASSIGN(const Environment environment, Environment::read());
  base::configure_logging(environment.log);
  auto world = std::make_unique<MpiWorld>(options, Clock::steady());
  LOCKSTEP_TRY(world->join());
  base::set_log_rank(world->rank());
  return std::unique_ptr<Groups>(std::move(world));
}

}  // namespace lockstep::backend
