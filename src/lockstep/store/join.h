// One rank's way into a world, round after round: the protocol that membership.h tells of.
//
// Thread safety: none; one thread, once.
#pragma once

#include <optional>

#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/store/member.h"
#include "lockstep/store/membership.h"
#include "lockstep/store/round_keys.h"
#include "lockstep/store/store.h"

namespace lockstep::store {

class Join {
 public:
  // Store and request outlive it.
  Join(Store& store, const JoinRequest& request, const Deadline& deadline);

  struct Joined {
    RoundKeys keys;
    Members members;
  };
  Result<Joined> run();
  JoinPhase phase() const { return phase_; }

 private:
  // What an attempt gives: the world's members, or nothing if another round must be looked for.
  using Attempt = Result<std::optional<Members>>;
  static Attempt another_round() { return std::optional<Members>(); }

  // The round that is open now, of this epoch.
  Result<RoundKeys> newest_round();
  Attempt attempt(const RoundKeys& keys);
  // This rank holds its slot in a round that nobody has decided yet.
  Attempt arrive(const RoundKeys& keys);
  // This rank holds its slot; what does the verdict mean for it?
  Attempt conclude(const RoundKeys& keys, const JoinVerdict& verdict);
  // Another process holds this rank's slot.
  Attempt slot_is_taken(const RoundKeys& keys, const MemberRecord& holder);
  // Left behind by a process that was killed: in this start of the job, or in an earlier one.
  Attempt founder_is_gone(const RoundKeys& keys, const Member& founder);
  Attempt go_to_next_round(const RoundKeys& keys);
  // Until the members of an earlier world have left or died.
  Attempt wait_for_end(const RoundKeys& keys, const Members& members);

  // Everyone has come: the table, unless someone disagrees.
  Result<JoinVerdict> complete(const RoundKeys& keys, const Deadline& deadline);
  Result<JoinVerdict> wait_for_verdict(const RoundKeys& keys);
  // The time is over: say who is missing, unless the world became complete just now.
  Result<JoinVerdict> give_up(const RoundKeys& keys);
  // Writes the verdict if there is none, and reads the one that stands.
  Result<JoinVerdict> decide(const RoundKeys& keys, const Status& failure);
  Result<JoinVerdict> decide_bytes(const RoundKeys& keys, const Buffer& verdict, const Deadline& deadline);

  // Those who come later can tell by it whether they belong to the round that has failed.
  Status note_failure(const RoundKeys& keys);
  // Whether this process had begun when somebody on its host heard that the round has failed.
  Result<bool> failed_since_begun(const RoundKeys& keys);
  // A failed rank takes its store along, so it waits until all who hold a slot have read why.
  Status let_others_hear(const RoundKeys& keys, const Status& failure);
  // Closes the round if nobody hears of its failure after this rank, which was the `heard`th.
  Status close_if_last(const RoundKeys& keys, const Status& failure, std::int64_t heard);
  Status claim_slot(const RoundKeys& keys);
  Status give_slot_back(const RoundKeys& keys);

  bool includes_self(const Members& members) const;
  Status as_reported_here(const Status& failure) const;
  bool is_gone(const Member& member) const;
  Deadline telling() const;
  Duration waited() const { return deadline_.clock().now() - started_; }

  Store& store_;
  const JoinRequest& request_;
  const MemberRecord& self_;
  const Buffer record_;
  const Deadline deadline_;
  const base::TimePoint started_;
  JoinPhase phase_ = JoinPhase::kLooking;
};

}  // namespace lockstep::store
