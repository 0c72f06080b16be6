#include "lockstep/store/join_errors.h"

#include "lockstep/base/text.h"

namespace lockstep::store::join_errors {
namespace {

// About `member`, which is the other one.
Cause about(Failure failure, const Member& member) {
  return {.failure = failure,
          .rank = {},
          .peer = member.rank,
          .op = "rendezvous",
          .sequence = {},
          .group = {},
          .host = member.host.name,
          .pid = member.pid,
          .missing = {}};
}

std::string_view secret_text(SecretFrom secret) {
  return secret == SecretFrom::kGiven ? " has the job's secret" : " has no secret";
}

}  // namespace

Status compare(const MemberRecord& one, const MemberRecord& other) {
  if (one.version != other.version) {
    return Status::unsupported(cat("The ranks run different versions of Lockstep: ", one.member.text(),
                                   " speaks wire version ", one.version, ", ", other.member.text(),
                                   " speaks ", other.version, ". Install the same version everywhere."),
                               about(Failure::kVersionMismatch, one.member));
  }
  if (one.world_size != other.world_size) {
    return Status::invalid(
        cat("The ranks disagree about the size of the world: ", one.member.text(), " says ", one.world_size,
            ", ", other.member.text(), " says ", other.world_size, ". Give every rank the same WORLD_SIZE."),
        about(Failure::kWorldSizeMismatch, one.member));
  }
  if (one.secret != other.secret) {
    return Status::invalid(cat("The ranks were not all given the job's secret: ", one.member.text(),
                               secret_text(one.secret), ", ", other.member.text(), secret_text(other.secret),
                               ". Set LOCKSTEP_SECRET_FILE for every rank or for none."),
                           about(Failure::kNoSecret, one.member));
  }
  return {};
}

Status rank_beyond_world(const MemberRecord& record) {
  return Status::invalid(cat(record.member.text(), " does not fit into its world of ", record.world_size,
                             ": ranks run from 0 to ", record.world_size.value - 1, "."),
                         about(Failure::kWorldSizeMismatch, record.member));
}

Status duplicate(const Member& first, const Member& second) {
  return Status::invalid(
      cat("Rank ", first.rank, " was claimed twice: by host ", first.host.name, ", pid ", first.pid,
          ", and by host ", second.host.name, ", pid ", second.pid, ". Give every process its own RANK."),
      about(Failure::kDuplicateRank, first));
}

Status died_while_joining(const Member& member) {
  return Status::disconnected(cat(member.text(), " died while the ranks were joining. Start the job again."),
                              about(Failure::kPeerDied, member));
}

Status died_in_set_up(const Member& member) {
  return Status::disconnected(cat("rank ", member.rank, " died while the world was being made (host ",
                                  member.host.name, ", pid ", member.pid, ")"),
                              about(Failure::kPeerDied, member));
}

Status missing(const std::vector<Rank>& missing, const std::vector<Rank>& present, WorldSize size,
               Duration after) {
  Cause cause{.failure = Failure::kMissingRanks,
              .rank = {},
              .peer = missing.front(),
              .op = "rendezvous",
              .sequence = {},
              .group = {},
              .host = {},
              .pid = {},
              .missing = missing};
  return Status::timeout(cat(missing.size() == 1 ? "rank " : "ranks ", base::ranks_text(missing), " of ",
                             size, " missing after ", after, "; ", base::ranks_text(present),
                             present.size() == 1 ? " is here" : " are here"),
                         std::move(cause));
}

Status stale_epoch(const Member& member, std::uint64_t epoch, std::uint64_t newest) {
  return Status::aborted(cat(member.text(), " belongs to epoch ", epoch, " of its job, but epoch ", newest,
                             " has begun: the job was started again, and this process is left over."),
                         about(Failure::kRejected, member));
}

Status superseded(const Member& by, std::uint64_t old_epoch, std::uint64_t new_epoch) {
  return Status::aborted(
      cat("Epoch ", old_epoch, " of the job is over: ", by.text(), " has begun epoch ", new_epoch, "."),
      about(Failure::kRejected, by));
}

Status foreign_key(std::string_view key) {
  return Status::invalid(cat("The store's key ", base::quoted(key),
                             " holds something else than a rendezvous: another program writes to it. Use a "
                             "store, port or file of your own."),
                         {.failure = Failure::kCorruptFrame});
}

Status store_ends(std::string_view store) {
  return Status::disconnected(cat(store, " is about to end with the earlier world that it served."),
                              {.failure = Failure::kStoreLost});
}

Status taken_in_running_world(const Member& holder, const Member& newcomer, const Members& members) {
  return Status::invalid(cat("Rank ", holder.rank, " is taken: host ", holder.host.name, ", pid ", holder.pid,
                             " holds it in a world of ", members.size(), " that is running; this is host ",
                             newcomer.host.name, ", pid ", newcomer.pid,
                             ". Leave the first world before joining again, or give this job a "
                             "LOCKSTEP_JOB_ID and a port or file of its own."),
                         about(Failure::kDuplicateRank, holder));
}

Status world_is_running(const MemberRecord& newcomer, const Members& members) {
  return Status::invalid(cat(newcomer.member.text(), " says that the world has ", newcomer.world_size,
                             " ranks, but a world of ", members.size(), " is running already, with ",
                             members.front().text(), ". Give every rank the same WORLD_SIZE."),
                         about(Failure::kWorldSizeMismatch, members.front()));
}

Status earlier_world_remains(const Member& newcomer, const std::vector<Member>& remaining, Duration after) {
  std::vector<std::string> names;
  for (const Member& member : remaining) {
    if (names.size() == 4) {
      names.push_back(cat(remaining.size() - 4, " more"));
      break;
    }
    names.push_back(member.text());
  }
  return Status::timeout(
      cat(newcomer.text(), " waited ", after,
          " for an earlier world to end, of which these have not left: ", base::join(names, ", "),
          ". Stop them; or, if they are dead, use another LOCKSTEP_JOB_ID or remove the file."),
      about(Failure::kDuplicateRank, remaining.front()));
}

}  // namespace lockstep::store::join_errors
