#include "lockstep/store/membership.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <thread>

#include "lockstep/base/crypto.h"
#include "lockstep/base/handshake.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/store/join_errors.h"
#include "lockstep/store/liveness.h"

namespace lockstep::store {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr base::Logger kLog("rendezvous");
// For what is said on the way out, after the join's own deadline.
constexpr Duration kTelling = seconds(2);
// How long rank 0 keeps its store up for members that have not read the verdict yet.
constexpr Duration kReading = seconds(5);
// How long it does so after a failure, for those who have not read why; and how often it looks.
constexpr Duration kHearing = seconds(1);
constexpr Duration kPoll = milliseconds(10);
// How often to look whether the members of an earlier round have died.
constexpr Duration kLookAgain = milliseconds(250);

Result<std::set<Rank>> ranks_with_slots(Store& store, const RoundKeys& keys, const Deadline& deadline) {
  LOCKSTEP_ASSIGN(const std::vector<std::string> all, store.list_keys(deadline));
  std::set<Rank> out;
  for (const std::string& key : all) {
    if (const auto rank = keys.rank_of_slot(key)) out.insert(*rank);
  }
  return out;
}

// Ends a round: whoever looks at it from now on goes to the next.
Status close_round(Store& store, const RoundKeys& keys, const Deadline& deadline) {
  LOCKSTEP_TRY(store.set(keys.verdict(), write_verdict(RoundClosed{}), deadline));
  LOCKSTEP_TRY(
      store
          .compare_set(keys.head(), bytes_of(keys.head_value()), bytes_of(keys.next().head_value()), deadline)
          .status());
  LOCKSTEP_TRY(store.set(keys.closed(), {}, deadline));
  LOCKSTEP_ASSIGN(const std::vector<std::string> all, store.list_keys(deadline));
  for (const std::string& key : all) {
    if (keys.is_garbage_after_close(key)) LOCKSTEP_TRY(store.delete_key(key, deadline).status());
  }
  return {};
}

// Before the rank that serves the store takes it away: whoever came again too early, and waits here for a
// world that cannot be, looks for the next store instead.
Status end_store(Store& store, const RoundKeys& keys, const Deadline& deadline) {
  LOCKSTEP_ASSIGN(const Buffer newest, store.get(keys.head(), deadline));
  LOCKSTEP_TRY(store.set(keys.head(), bytes_of(RoundKeys::kEnded), deadline));
  const auto head = RoundKeys::parse_head(text_of(newest));
  if (!head || (head->epoch == keys.epoch() && head->round == keys.round())) return {};
  const RoundKeys open = keys.at(head->epoch, head->round);
  LOCKSTEP_TRY(store.compare_set(open.verdict(), {}, write_verdict(RoundClosed{}), deadline).status());
  // Those who had claimed a slot there read the verdict and give it back.
  while (!deadline.expired()) {
    LOCKSTEP_ASSIGN(const std::set<Rank> slots, ranks_with_slots(store, open, deadline));
    if (slots.empty()) break;
    std::this_thread::sleep_for(deadline.clock().patience(kPoll));
  }
  return {};
}

// One rank's way into a world.
class Join {
 public:
  Join(Store& store, const JoinRequest& request, const Deadline& deadline)
      : store_(store),
        request_(request),
        self_(request.self),
        record_(write_member(request.self)),
        deadline_(deadline),
        started_(request.since.value_or(deadline.clock().now())) {}

  struct Joined {
    RoundKeys keys;
    Members members;
  };
  JoinPhase phase() const { return phase_; }
  Result<Joined> run() {
    while (true) {
      LOCKSTEP_ASSIGN(const RoundKeys keys, newest_round());
      LOCKSTEP_ASSIGN(std::optional<Members> members, attempt(keys));
      if (members) return Joined{keys, std::move(*members)};
    }
  }

 private:
  // What an attempt gives: the world's members, or nothing if another round must be looked for.
  using Attempt = Result<std::optional<Members>>;
  static Attempt another_round() { return std::optional<Members>(); }

  // The round that is open now, of this epoch.
  Result<RoundKeys> newest_round() {
    const RoundKeys mine(request_.job_id, request_.epoch, 0);
    LOCKSTEP_ASSIGN(Buffer value,
                    store_.compare_set(mine.head(), {}, bytes_of(mine.head_value()), deadline_));
    while (true) {
      if (text_of(value) == RoundKeys::kEnded) {
        phase_ = JoinPhase::kLooking;
        return join_errors::store_ends(store_.description());
      }
      const auto head = RoundKeys::parse_head(text_of(value));
      if (!head) return join_errors::foreign_key(mine.head());
      if (head->epoch == mine.epoch()) return mine.at(head->epoch, head->round);
      if (head->epoch > mine.epoch())
        return join_errors::stale_epoch(self_.member, mine.epoch(), head->epoch);
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

  Attempt attempt(const RoundKeys& keys) {
    if (!self_.world_size.contains(self_.member.rank)) {
      const Status misfit = join_errors::rank_beyond_world(self_);
      LOCKSTEP_TRY(decide(keys, misfit).status());
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
    LOCKSTEP_ASSIGN(const std::int64_t arrived, store_.add(keys.arrived(), 1, deadline_));
    phase_ = JoinPhase::kArrived;
    kLog.debug(cat(self_.member.text(), " has arrived; ", arrived, " of ", self_.world_size, " are here"));
    Result<JoinVerdict> verdict =
        arrived == self_.world_size.value ? complete(keys, deadline_) : wait_for_verdict(keys);
    if (verdict.status().code() == Code::kTimeout) verdict = give_up(keys);
    if (!verdict.ok()) return verdict.status();
    return conclude(keys, *verdict);
  }

  // This rank holds its slot; what does the verdict mean for it?
  Attempt conclude(const RoundKeys& keys, const JoinVerdict& verdict) {
    if (const auto* failure = std::get_if<Status>(&verdict)) {
      if (const Status told = let_others_hear(keys); !told.ok()) kLog.debug(told.message());
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

  bool includes_self(const Members& members) const {
    const auto rank = static_cast<std::size_t>(self_.member.rank.value);
    return rank < members.size() && members[rank].nonce == self_.member.nonce;
  }

  // Another process holds this rank's slot.
  Attempt slot_is_taken(const RoundKeys& keys, const MemberRecord& holder) {
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
    // The round had failed before, and this is a new attempt at the same rank: so it belongs to the next
    // round.
    return go_to_next_round(keys);
  }

  // Left behind by a process that was killed before its round had a verdict.
  Attempt founder_is_gone(const RoundKeys& keys, const Member& founder) {
    LOCKSTEP_ASSIGN(const JoinVerdict verdict, decide(keys, join_errors::died_while_joining(founder)));
    if (std::holds_alternative<Members>(verdict)) return conclude(keys, verdict);
    LOCKSTEP_TRY(give_slot_back(keys));
    return go_to_next_round(keys);
  }

  Attempt go_to_next_round(const RoundKeys& keys) {
    LOCKSTEP_TRY(store_
                     .compare_set(keys.head(), bytes_of(keys.head_value()),
                                  bytes_of(keys.next().head_value()), deadline_)
                     .status());
    return another_round();
  }

  // Until the members of an earlier world have left or died.
  Attempt wait_for_end(const RoundKeys& keys, const Members& members) {
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

  // Everyone has come: the table, unless someone disagrees.
  Result<JoinVerdict> complete(const RoundKeys& keys, const Deadline& deadline) {
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

  Result<JoinVerdict> wait_for_verdict(const RoundKeys& keys) {
    LOCKSTEP_ASSIGN(const Buffer bytes, store_.get(keys.verdict(), deadline_));
    return parse_verdict(bytes);
  }

  // The time is over: say who is missing, unless the world became complete just now.
  Result<JoinVerdict> give_up(const RoundKeys& keys) {
    const Duration after = waited();
    LOCKSTEP_ASSIGN(const std::set<Rank> here, ranks_with_slots(store_, keys, telling()));
    std::vector<Rank> missing, present;
    for (int rank = 0; rank < self_.world_size.value; ++rank)
      (here.contains(Rank{rank}) ? present : missing).emplace_back(rank);
    // All are here, so the last of them stopped between its slot and its arrival: do its part.
    if (missing.empty()) return complete(keys, telling());
    return decide(keys, join_errors::missing(missing, present, self_.world_size, after));
  }

  // A failed rank takes its store along, so it waits until all who hold a slot have read why.
  Status let_others_hear(const RoundKeys& keys) {
    LOCKSTEP_ASSIGN(std::int64_t seen, store_.add(keys.seen(), 1, telling()));
    if (request_.store_ends == StoreEnds::kLater) return {};
    const Deadline deadline = deadline_.clock().in(kHearing);
    while (!deadline.expired()) {
      LOCKSTEP_ASSIGN(const std::set<Rank> slots, ranks_with_slots(store_, keys, telling()));
      LOCKSTEP_ASSIGN(seen, store_.add(keys.seen(), 0, telling()));
      if (seen >= static_cast<std::int64_t>(slots.size())) break;
      std::this_thread::sleep_for(deadline.clock().patience(kPoll));
    }
    return end_store(store_, keys, telling());
  }

  // Writes the verdict if there is none, and reads the one that stands.
  Result<JoinVerdict> decide(const RoundKeys& keys, const Status& failure) {
    return decide_bytes(keys, write_verdict(failure), telling());
  }
  Result<JoinVerdict> decide_bytes(const RoundKeys& keys, const Buffer& verdict, const Deadline& deadline) {
    LOCKSTEP_ASSIGN(const Buffer stands, store_.compare_set(keys.verdict(), {}, verdict, deadline));
    return parse_verdict(stands);
  }

  Status give_slot_back(const RoundKeys& keys) {
    const std::string key = keys.slot(self_.member.rank);
    return store_.delete_key(key, telling()).status();
  }

  Status as_reported_here(const Status& failure) const {
    Cause cause = failure.cause();
    cause.rank = self_.member.rank;
    return failure.with_cause(std::move(cause));
  }

  bool is_gone(const Member& member) const {
    return member.nonce != self_.member.nonce && request_.is_gone(member);
  }
  Deadline telling() const { return deadline_.clock().in(kTelling); }
  Duration waited() const { return deadline_.clock().now() - started_; }

  Store& store_;
  const JoinRequest& request_;
  const MemberRecord& self_;
  const Buffer record_;
  const Deadline deadline_;
  const base::TimePoint started_;
  JoinPhase phase_ = JoinPhase::kLooking;
};

// Lets the others know that this rank has the table, and stays until all have it if the store ends with it.
// The world is complete by now, so that trouble here is no failure of the join.
void confirm(Store& store, const RoundKeys& keys, const JoinRequest& request, const Deadline& deadline) {
  const auto seen = store.add(keys.seen(), 1, deadline);
  Status status = seen.status();
  if (seen.ok() && *seen == request.self.world_size.value) status = store.set(keys.all_seen(), {}, deadline);
  const std::string all_seen[] = {keys.all_seen()};
  if (status.ok() && request.store_ends == StoreEnds::kWithThisRank)
    status = store.wait(all_seen, deadline.at_most(kReading));
  if (!status.ok()) kLog.debug(cat("the join is complete, but: ", status.message()));
}

}  // namespace

Result<std::unique_ptr<Membership>> Membership::join(std::shared_ptr<Store> store, JoinRequest request,
                                                     const Deadline& deadline, JoinPhase* reached) {
  MemberRecord& self = request.self;
  if (self.world_size.value < 1 || self.world_size.value > kMaxWorldSize) {
    return Status::invalid(
        cat("A world of ", self.world_size, " ranks cannot be made: 1 to ", kMaxWorldSize, " are possible."),
        {.failure = Failure::kLimitExceeded});
  }
  if (self.version == 0) self.version = base::kWireVersion;
  base::random_bytes(self.member.nonce);
  self.member.pid = ::getpid();
  self.member.start_time = process_start_time(self.member.pid).value_or(0);
  if (!request.is_gone) {
    request.is_gone = [here = self.member.host](const Member& member) {
      return is_certainly_gone(member, here);
    };
  }
  Join join(*store, request, deadline);
  Result<Join::Joined> joined = join.run();
  if (reached != nullptr) *reached = join.phase();
  if (!joined.ok()) return joined.status();
  confirm(*store, joined->keys, request, deadline);
  return std::unique_ptr<Membership>(
      new Membership(std::move(store), joined->keys, request, std::move(joined->members)));
}

Membership::Membership(std::shared_ptr<Store> store, RoundKeys keys, const JoinRequest& request,
                       Members members)
    : store_(std::move(store)),
      keys_(std::move(keys)),
      rank_(request.self.member.rank),
      store_ends_(request.store_ends),
      members_(std::move(members)),
      pid_(::getpid()) {}

Membership::~Membership() { leave(); }

Membership::Left Membership::leave() {
  if (left_) return *left_;
  left_ = Left::kUnknown;
  if (::getpid() != pid_) return *left_;
  const Deadline deadline = store_->clock().in(kTelling);
  if (!store_->delete_key(keys_.slot(rank_), deadline).ok()) return *left_;
  const auto left = store_->add(keys_.left(), 1, deadline);
  if (!left.ok()) return *left_;
  left_ = *left < static_cast<std::int64_t>(members_.size()) ? Left::kOthersRemain : Left::kLast;
  if (*left_ == Left::kLast) {
    if (const Status status = close_round(*store_, keys_, deadline); !status.ok())
      kLog.debug(cat("the last rank has left, but: ", status.message()));
  }
  if (store_ends_ == StoreEnds::kWithThisRank) {
    const std::string closed[] = {keys_.closed()};
    if (!store_->wait(closed, deadline).ok())
      kLog.debug("some ranks have not left; the store ends without them");
    if (const Status status = end_store(*store_, keys_, store_->clock().in(kTelling)); !status.ok())
      kLog.debug(cat("the store ends, but: ", status.message()));
  }
  return *left_;
}

}  // namespace lockstep::store
