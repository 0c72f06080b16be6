// NativeWorld::shrink(): agree on who is left, move house, and make their group. docs/failures.md has the
// protocol.
#include <algorithm>
#include <set>

#include "lockstep/backend/logger.h"
#include "lockstep/backend/native/agreement.h"
#include "lockstep/backend/native/native_world.h"
#include "lockstep/base/text.h"

namespace lockstep::backend {
namespace {

// Whether whoever met this has lost the rank that it names.
bool is_loss(Failure failure) {
  return failure == Failure::kPeerDied || failure == Failure::kPeerStalled ||
         failure == Failure::kPeerUnreachable;
}

bool contains(const std::vector<Rank>& ranks, Rank rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::vector<Rank> difference(const std::vector<Rank>& all, const std::vector<Rank>& some) {
  std::vector<Rank> rest;
  std::copy_if(all.begin(), all.end(), std::back_inserter(rest), [&](Rank r) { return !contains(some, r); });
  return rest;
}

// What another round may mend: a rank was lost meanwhile, or has fallen behind.
bool passes(const Status& status) {
  return status.code() == Code::kTimeout ||
         (status.code() == Code::kDisconnected && status.failure() != Failure::kStoreLost);
}

}  // namespace

// One call of shrink() on one rank.
class NativeWorld::Shrink {
 public:
  Shrink(NativeWorld& world, const ShrinkOptions& options, std::vector<Rank> members, int number)
      : world_(world),
        facilities_(*world.facilities_),
        options_(options),
        before_(members),
        members_(std::move(members)),
        number_(number) {}

  Result<std::unique_ptr<Backend>> run() {
    LOCKSTEP_TRY(end_groups());
    facilities_.mail().close();
    const Monitor::Pause pause(*facilities_.monitor());
    Status last;
    // Every round but a few loses someone.
    const int rounds = static_cast<int>(before_.size()) + 3;
    for (int round = 0; round < rounds; ++round) {
      Agreement agreement = in_round(round);
      auto left = agreement.decide();
      if (!left.ok()) return give_up(left.status());
      LOCKSTEP_TRY(tell(*left));
      auto group = rebuild(*left, round, agreement);
      if (group.status().failure() == Failure::kStoreLost) return group.status();
      const auto verdict = agreement.settle(group.status());
      if (!group.ok() && !passes(group.status())) {
        (void)in_round(round + 1).withdraw(std::string(group.status().message()));
        return give_up(group.status());
      }
      if (!verdict.ok()) return verdict.status();
      members_ = *left;
      if (*verdict == Agreement::Verdict::kGo) {
        finish();
        return group;
      }
      facilities_.mail().close();  // before anyone begins the next round
      last = group.ok() ? Status::timeout("other ranks were lost again and again") : group.status();
    }
    return last.with_prefix(cat("rank ", world_.rank(), ": the world could not be shrunk: "));
  }

 private:
  Agreement in_round(int round) {
    return {{.prefix = prefix(round),
             .rank = world_.rank(),
             .members = members_,
             .patience = options_.patience,
             .losses = [this] { return losses(); },
             .look = [this] { return facilities_.look_at_store(named_); }},
            *world_.rendezvous().store,
            facilities_.clock()};
  }
  std::string prefix(int round) const { return cat("shrink/", number_, '/', round); }

  Losses losses() const {
    Losses losses;
    for (const auto& [rank, status] : facilities_.monitor()->lost(members_)) {
      const bool dead = status.failure() == Failure::kPeerDied;
      losses[rank] = {.kind = dead ? Loss::Kind::kDead : Loss::Kind::kSuspected,
                      .why = std::string(status.message())};
    }
    for (const Rank rank : options_.exclude)
      losses[rank] = {.kind = Loss::Kind::kNamed, .why = cat("rank ", world_.rank(), " excluded it")};
    return losses;
  }

  // After this, and once the mail is closed, nothing of ours touches the heaps; who has come to the agreement
  // has done both.
  Status end_groups() {
    const Deadline deadline = facilities_.clock().in(options_.patience);
    const Status why = Status::aborted(
        cat("rank ", world_.rank(), " shrinks the world: its groups end, and are made anew afterwards"),
        {.failure = Failure::kClosed, .rank = world_.rank(), .op = "shrink"});
    return facilities_.for_each_group([&](NativeGroup& group) {
      // A rank that has heard it from others pauses its monitor before that knows.
      if (const Status failure = group.failure(); is_loss(failure.failure()) && failure.cause().peer)
        named_.insert(*failure.cause().peer);
      Status status = group.end(why, deadline);
      facilities_.forget(group.id());
      return status;
    });
  }

  // For those that are out and do not ask.
  Status tell(const std::vector<Rank>& left) {
    if (left.front() != world_.rank()) return {};
    for (const Rank out : difference(members_, left)) {
      const std::string text =
          cat("rank ", out, " was left out of the world when it was shrunk to rank ", base::ranks_text(left));
      LOCKSTEP_TRY(world_.rendezvous().store->set(cat("left_out/", out), bytes_of(text),
                                                  facilities_.clock().in(options_.patience)));
    }
    return {};
  }

  Result<std::unique_ptr<Backend>> rebuild(const std::vector<Rank>& left, int round, Agreement& agreement) {
    transport::shm::Domain& domain = *facilities_.domain();
    const Deadline deadline = facilities_.clock().in(options_.patience);
    std::vector<int> stay;
    for (int i = 0; i < domain.size(); ++i) {
      if (contains(left, domain.rank_of(i))) stay.push_back(i);
    }
    const auto look = [this, &left] {
      LOCKSTEP_TRY(facilities_.first_lost(left));
      return facilities_.look_at_store(named_);
    };
    LOCKSTEP_TRY(domain.renew(stay, cat(prefix(round), "/heap"), *world_.rendezvous().store, deadline, look));
    // Those of another host may have failed for a reason that nobody has heard of here.
    const auto look_further = [&] {
      LOCKSTEP_TRY(look());
      return agreement.look();
    };
    LOCKSTEP_TRY(facilities_.mail().open(left, cat(prefix(round), "/mail"), deadline, look_further));
    GroupOptions named = options_.group;
    if (!named.name) named.name = cat("world shrunk to rank ", base::ranks_text(left));
    return facilities_.make_group(left, named, prefix(round), deadline);
  }

  Status give_up(const Status& why) {
    if (why.failure() == Failure::kStoreLost) return why;
    const MutexLock lock(world_.mutex_);
    Cause cause = why.cause();
    cause.failure = Failure::kLeftOut;
    world_.left_out_ = why.with_cause(cause);
    return why;
  }

  void finish() {
    const std::vector<Rank> out = difference(before_, members_);
    const std::string text = cat("the world was shrunk to rank ", base::ranks_text(members_));
    for (const Rank rank : out) {
      facilities_.monitor()->leave_out(
          {rank}, Status::disconnected(cat("rank ", rank, " was left out when ", text),
                                       {.failure = Failure::kLeftOut, .rank = world_.rank(), .peer = rank}));
    }
    kLog.info(cat("rank ", world_.rank(), ": ", text, out.empty() ? "" : ", without rank ",
                  out.empty() ? "" : base::ranks_text(out), "."));
    const MutexLock lock(world_.mutex_);
    world_.left_ = members_;
    ++world_.shrinks_;
  }

  NativeWorld& world_;
  Facilities& facilities_;
  const ShrinkOptions& options_;
  const std::vector<Rank> before_;
  std::vector<Rank> members_;  // who is left, as far as it was agreed
  std::set<Rank> named_;       // whom the failures of groups say to be lost
  const int number_;           // of the shrink
};

Result<std::unique_ptr<Backend>> NativeWorld::shrink(const ShrinkOptions& options) {
  LOCKSTEP_TRY(refuse("a shrink"));
  if (contains(options.exclude, rank()))
    return Status::invalid(
        cat("rank ", rank(),
            " excludes itself from the world; a rank that wants to leave destroys its World"),
        {.rank = rank(), .op = "shrink"});
  if (facilities_->monitor() == nullptr) return new_group({rank()}, options.group);  // a world of one
  std::vector<Rank> members;
  int number = 0;
  {
    const MutexLock lock(mutex_);
    members = left_;
    number = shrinks_;
  }
  auto group = Shrink(*this, options, std::move(members), number).run();
  if (group.ok()) rendezvous().error_note.withdraw();
  return group;
}

}  // namespace lockstep::backend
