#include "lockstep/store/join.h"

#include <algorithm>
#include <set>
#include <thread>

#include "lockstep/base/text.h"
#include "lockstep/store/join_errors.h"
#include "lockstep/store/join_wills.h"
#include "lockstep/store/liveness.h"
#include "lockstep/store/logger.h"
#include "lockstep/store/rounds.h"

namespace lockstep::store {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// For what is said on the way out, after the join's own deadline.
constexpr Duration kTelling = seconds(2);
// How long rank 0 keeps its store up, after a failure, for those who have not read why; and how often it
// looks.
constexpr Duration kHearing = seconds(1);
constexpr Duration kPoll = milliseconds(10);
// How often who comes to a failed round looks whether others there hear of it: for three seconds.
constexpr int kLooks = 300;
// How often to look whether the members of an earlier round have died.
constexpr Duration kLookAgain = milliseconds(250);

}  // namespace

Join::Join(Store& store, const JoinRequest& request, const Deadline& deadline)
    : store_(store),
      request_(request),
      self_(request.self),
      record_(write_member(request.self)),
      deadline_(deadline),
      started_(request.since.value_or(deadline.clock().now())) {}

Result<Join::Joined> Join::run() {
  while (true) {
    LOCKSTEP_ASSIGN(const RoundKeys keys, newest_round());
    Attempt members = attempt(keys);
    const bool joined = members.ok() && members->has_value();
    // Whoever goes on to another round, or gives up, has said why by now.
    if (!joined) JoinWills(request_.wills, keys, self_.member).take_back();
    if (!members.ok()) return members.status();
    if (joined) return Joined{keys, **std::move(members)};
  }
}

Result<RoundKeys> Join::newest_round() {
  const RoundKeys mine(request_.job_id, request_.epoch, 0);
  LOCKSTEP_ASSIGN(Buffer value, store_.compare_set(mine.head(), {}, bytes_of(mine.head_value()), deadline_));
  while (true) {
    if (text_of(value) == RoundKeys::kEnded) {
      phase_ = JoinPhase::kLooking;
      return join_errors::store_ends(store_.description());
    }
    const auto head = RoundKeys::parse_head(text_of(value));
    if (!head) return join_errors::foreign_key(mine.head());
    if (head->epoch == mine.epoch()) return mine.at(head->epoch, head->round);
    if (head->epoch > mine.epoch()) return join_errors::stale_epoch(self_.member, mine.epoch(), head->epoch);
    LOCKSTEP_ASSIGN(Buffer now,
                    store_.compare_set(mine.head(), value, bytes_of(mine.head_value()), deadline_));
    if (text_of(now) == mine.head_value()) {
      const RoundKeys old = mine.at(head->epoch, head->round);
      LOCKSTEP_TRY(decide(old, join_errors::superseded(self_.member, old.epoch(), mine.epoch())).status());
      return mine;
    }
    value = std::move(now);
  }
}

Join::Attempt Join::attempt(const RoundKeys& keys) {
  if (!self_.world_size.contains(self_.member.rank)) {
    const Status misfit = join_errors::rank_beyond_world(self_);
    LOCKSTEP_ASSIGN(const JoinVerdict verdict, decide(keys, misfit));
    if (std::holds_alternative<Status>(verdict) && request_.store_ends == StoreEnds::kWithTheLastRank) {
      LOCKSTEP_ASSIGN(const std::int64_t heard, store_.add(keys.seen(), 0, telling()));
      LOCKSTEP_TRY(close_if_last(keys, misfit, heard));
    }
    return misfit;
  }
  LOCKSTEP_ASSIGN(const Buffer founder_bytes, store_.compare_set(keys.founder(), {}, record_, deadline_));
  LOCKSTEP_ASSIGN(const MemberRecord founder, parse_member(founder_bytes));
  LOCKSTEP_ASSIGN(const Buffer slot_bytes,
                  store_.compare_set(keys.slot(self_.member.rank), {}, record_, deadline_));
  if (slot_bytes != record_) {
    LOCKSTEP_ASSIGN(const MemberRecord holder, parse_member(slot_bytes));
    return slot_is_taken(keys, holder);
  }
  JoinWills(request_.wills, keys, self_.member).make();
  if (is_gone(founder.member)) return founder_is_gone(keys, founder.member);
  // Someone who comes again finds the round of the world that was here before, complete or closed.
  const std::string verdict_key[] = {keys.verdict()};
  LOCKSTEP_ASSIGN(const bool decided, store_.check(verdict_key, deadline_));
  if (decided) {
    LOCKSTEP_ASSIGN(const JoinVerdict verdict, wait_for_verdict(keys));
    return conclude(keys, verdict);
  }
  if (Status disagreement = join_errors::compare(founder, self_); !disagreement.ok()) {
    LOCKSTEP_ASSIGN(const JoinVerdict verdict, decide(keys, disagreement));
    return conclude(keys, verdict);
  }
  return arrive(keys);
}

Join::Attempt Join::arrive(const RoundKeys& keys) {
  LOCKSTEP_ASSIGN(const std::int64_t arrived, store_.add(keys.arrived(), 1, deadline_));
  phase_ = JoinPhase::kArrived;
  kRendezvousLog.debug(
      cat(self_.member.text(), " has arrived; ", arrived, " of ", self_.world_size, " are here"));
  Result<JoinVerdict> verdict =
      arrived == self_.world_size.value ? complete(keys, deadline_) : wait_for_verdict(keys);
  if (verdict.status().code() == Code::kTimeout) verdict = give_up(keys);
  if (!verdict.ok()) return verdict.status();
  if (std::holds_alternative<Status>(*verdict)) {
    if (const Status noted = note_failure(keys); !noted.ok()) kRendezvousLog.debug(noted.message());
  }
  return conclude(keys, *verdict);
}

Join::Attempt Join::conclude(const RoundKeys& keys, const JoinVerdict& verdict) {
  if (const auto* failure = std::get_if<Status>(&verdict)) {
    if (const Status told = let_others_hear(keys, *failure); !told.ok()) kRendezvousLog.debug(told.message());
    return as_reported_here(*failure);
  }
  const auto* members = std::get_if<Members>(&verdict);
  if (members != nullptr && includes_self(*members)) return std::optional<Members>(*members);
  // The round of an earlier world: closed, or complete before this rank came, whose slot there was given
  // back.
  phase_ = JoinPhase::kLooking;
  LOCKSTEP_TRY(give_slot_back(keys));
  if (members == nullptr) return go_to_next_round(keys);
  if (static_cast<int>(members->size()) <= self_.member.rank.value)
    return join_errors::world_is_running(self_, *members);
  return wait_for_end(keys, *members);
}

bool Join::includes_self(const Members& members) const {
  const auto rank = static_cast<std::size_t>(self_.member.rank.value);
  return rank < members.size() && members[rank].nonce == self_.member.nonce;
}

Join::Attempt Join::slot_is_taken(const RoundKeys& keys, const MemberRecord& holder) {
  const bool gone = is_gone(holder.member);
  const std::string verdict_key[] = {keys.verdict()};
  LOCKSTEP_ASSIGN(const bool decided, store_.check(verdict_key, deadline_));
  LOCKSTEP_ASSIGN(const JoinVerdict verdict,
                  decide(keys, gone ? join_errors::died_while_joining(holder.member)
                                    : join_errors::duplicate(holder.member, self_.member)));
  if (const auto* members = std::get_if<Members>(&verdict)) {
    if (gone) return wait_for_end(keys, *members);
    return join_errors::taken_in_running_world(holder.member, self_.member, *members);
  }
  const auto* failure = std::get_if<Status>(&verdict);
  if (failure != nullptr && !decided && !gone) return as_reported_here(*failure);
  // The round had failed before, and this is a new attempt at the same rank: so it belongs to the next round.
  return go_to_next_round(keys);
}

Join::Attempt Join::founder_is_gone(const RoundKeys& keys, const Member& founder) {
  LOCKSTEP_ASSIGN(const JoinVerdict verdict, decide(keys, join_errors::died_while_joining(founder)));
  if (std::holds_alternative<Members>(verdict)) return conclude(keys, verdict);
  // So that two who come to the round of a job that was killed do not take each other for its members.
  LOCKSTEP_TRY(give_slot_back(keys));
  if (std::holds_alternative<Status>(verdict)) {
    LOCKSTEP_ASSIGN(const bool late, failed_since_begun(keys));
    if (late) {
      LOCKSTEP_TRY(claim_slot(keys));  // by which its next attempt is known as one
      return conclude(keys, verdict);
    }
  }
  return go_to_next_round(keys);
}

Status Join::note_failure(const RoundKeys& keys) {
  const std::string now = cat(boot_ticks());
  return store_.compare_set(keys.heard(self_.member.host.boot_id), {}, bytes_of(now), telling()).status();
}

Result<bool> Join::failed_since_begun(const RoundKeys& keys) {
  const std::string heard[] = {keys.heard(self_.member.host.boot_id)};
  for (int look = 0; look < kLooks; ++look) {
    LOCKSTEP_ASSIGN(const bool somebody, store_.check(heard, telling()));
    if (somebody) {
      LOCKSTEP_ASSIGN(const Buffer ticks, store_.get(heard[0], telling()));
      return self_.member.start_time < base::parse_integer<std::uint64_t>(text_of(ticks)).value_or(0);
    }
    // Those who wait there hear it now; who is dead does not.
    LOCKSTEP_ASSIGN(const bool alive, anyone_may_live(store_, keys, request_.is_gone, telling()));
    if (!alive) return false;
    std::this_thread::sleep_for(deadline_.clock().patience(kPoll));
  }
  return false;
}

Join::Attempt Join::go_to_next_round(const RoundKeys& keys) {
  LOCKSTEP_TRY(store_
                   .compare_set(keys.head(), bytes_of(keys.head_value()), bytes_of(keys.next().head_value()),
                                deadline_)
                   .status());
  return another_round();
}

Join::Attempt Join::wait_for_end(const RoundKeys& keys, const Members& members) {
  const std::string closed[] = {keys.closed()};
  while (true) {
    LOCKSTEP_ASSIGN(const std::set<Rank> slots, ranks_with_slots(store_, keys, telling()));
    std::vector<Member> remaining;
    std::copy_if(members.begin(), members.end(), std::back_inserter(remaining),
                 [&](const Member& member) { return slots.contains(member.rank) && !is_gone(member); });
    if (remaining.empty()) {
      LOCKSTEP_TRY(close_round(store_, keys, deadline_));
      return another_round();
    }
    const Status status = store_.wait(closed, deadline_.at_most(kLookAgain));
    if (status.ok()) return another_round();
    if (status.code() != Code::kTimeout) return status;
    if (deadline_.expired()) return join_errors::earlier_world_remains(self_.member, remaining, waited());
  }
}

Result<JoinVerdict> Join::complete(const RoundKeys& keys, const Deadline& deadline) {
  std::vector<std::string> slots;
  slots.reserve(static_cast<std::size_t>(self_.world_size.value));
  for (int rank = 0; rank < self_.world_size.value; ++rank) slots.push_back(keys.slot(Rank{rank}));
  LOCKSTEP_ASSIGN(const std::vector<Buffer> values, store_.multi_get(slots, deadline));
  Members members;
  for (const Buffer& value : values) {
    LOCKSTEP_ASSIGN(MemberRecord record, parse_member(value));
    if (Status disagreement = join_errors::compare(record, self_); !disagreement.ok())
      return decide(keys, disagreement);
    members.push_back(std::move(record.member));
  }
  return decide_bytes(keys, write_verdict(members), deadline);
}

Result<JoinVerdict> Join::wait_for_verdict(const RoundKeys& keys) {
  LOCKSTEP_ASSIGN(const Buffer bytes, store_.get(keys.verdict(), deadline_));
  return parse_verdict(bytes);
}

Result<JoinVerdict> Join::give_up(const RoundKeys& keys) {
  const Duration after = waited();
  LOCKSTEP_ASSIGN(const std::set<Rank> here, ranks_with_slots(store_, keys, telling()));
  std::vector<Rank> missing, present;
  for (int rank = 0; rank < self_.world_size.value; ++rank)
    (here.contains(Rank{rank}) ? present : missing).emplace_back(rank);
  // All are here, so the last of them stopped between its slot and its arrival: do its part.
  if (missing.empty()) return complete(keys, telling());
  return decide(keys, join_errors::missing(missing, present, self_.world_size, after));
}

Status Join::let_others_hear(const RoundKeys& keys, const Status& failure) {
  LOCKSTEP_ASSIGN(std::int64_t seen, store_.add(keys.seen(), 1, telling()));
  if (request_.store_ends == StoreEnds::kLater) return {};
  if (request_.store_ends == StoreEnds::kWithTheLastRank) return close_if_last(keys, failure, seen);
  const Deadline deadline = deadline_.clock().in(kHearing);
  while (!deadline.expired()) {
    LOCKSTEP_ASSIGN(const std::set<Rank> slots, ranks_with_slots(store_, keys, telling()));
    LOCKSTEP_ASSIGN(seen, store_.add(keys.seen(), 0, telling()));
    if (seen >= static_cast<std::int64_t>(slots.size())) break;
    std::this_thread::sleep_for(deadline.clock().patience(kPoll));
  }
  return end_store(store_, keys, telling());
}

Status Join::close_if_last(const RoundKeys& keys, const Status& failure, std::int64_t heard) {
  const Deadline deadline = deadline_.clock().in(kHearing);
  while (true) {
    LOCKSTEP_ASSIGN(const std::set<Rank> slots, ranks_with_slots(store_, keys, telling()));
    LOCKSTEP_ASSIGN(const std::int64_t seen, store_.add(keys.seen(), 0, telling()));
    if (seen != heard) return {};  // then who came after this rank does it
    const bool all_heard = seen >= static_cast<std::int64_t>(slots.size());
    // Those who start a little later are to hear it too. Who was missing has had its time.
    const bool all_came = static_cast<int>(slots.size()) >= self_.world_size.value ||
                          failure.failure() == Failure::kMissingRanks;
    if (all_heard && (all_came || deadline.expired())) return close_round(store_, keys, telling());
    if (deadline.expired()) return {};
    std::this_thread::sleep_for(deadline.clock().patience(kPoll));
  }
}

Result<JoinVerdict> Join::decide(const RoundKeys& keys, const Status& failure) {
  return decide_bytes(keys, write_verdict(failure), telling());
}

Result<JoinVerdict> Join::decide_bytes(const RoundKeys& keys, const Buffer& verdict,
                                       const Deadline& deadline) {
  LOCKSTEP_ASSIGN(const Buffer stands, store_.compare_set(keys.verdict(), {}, verdict, deadline));
  return parse_verdict(stands);
}

Status Join::claim_slot(const RoundKeys& keys) {
  return store_.compare_set(keys.slot(self_.member.rank), {}, record_, telling()).status();
}

Status Join::give_slot_back(const RoundKeys& keys) {
  return store_.delete_key(keys.slot(self_.member.rank), telling()).status();
}

Status Join::as_reported_here(const Status& failure) const {
  Cause cause = failure.cause();
  cause.rank = self_.member.rank;
  return failure.with_cause(std::move(cause));
}

bool Join::is_gone(const Member& member) const {
  return member.nonce != self_.member.nonce && request_.is_gone(member);
}

Deadline Join::telling() const { return deadline_.clock().in(kTelling); }

}  // namespace lockstep::store
