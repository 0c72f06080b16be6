// The protocol by which n ranks become a world through a store. Keys and records: docs/wire/rendezvous.md.
//
// A round is one attempt to become a world. In it
//   - the founder is whoever came first; its record says what everyone must agree on,
//   - each rank claims its slot with its record,
//   - the last to come reads all slots and writes the verdict: the table of all members, or one error that
//   every
//     rank reports. Whoever sees something wrong earlier, or gives up, writes the verdict in its place; the
//     first one stands.
// Where the store sees its clients end (wills.h) it writes the verdict for a rank that dies while it waits.
// A round ends when its last member has left; then the next may begin on the same store. A round whose
// members are certainly dead (killed, on this host) is history at once. A failed round belongs to the
// processes that had begun when it failed, so that whoever comes late hears it and a job that is started
// again does not. Cost: 7 calls per rank, and the last one reads n records in one more; the table names each
// host once.
//
// Thread safety: join() from any thread; a Membership is used by one thread at a time.
// Errors: kDuplicateRank, kWorldSizeMismatch, kMissingRanks, kVersionMismatch, kRejected (a newer epoch has
// begun); each names the ranks, hosts and pids. During the join all ranks hear it; once a world runs, only
// the newcomer does. Does not: connect, look up names, or watch the members afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/store/member.h"
#include "lockstep/store/round_keys.h"
#include "lockstep/store/store.h"
#include "lockstep/store/wills.h"

namespace lockstep::store {

// Whether the store ends with this rank; then join() returns only when every member has read the verdict, and
// leave() only when every member has left, or after 2 s: ranks may be destroyed in any order.
// kWithTheLastRank: a file, which who leaves last removes; so does who is the last to hear that the join has
// failed.
enum class StoreEnds : std::uint8_t { kLater, kWithThisRank, kWithTheLastRank };

// How far a join has come. Before it has arrived, a rank has met nobody of its own world: if the store ends
// then, it was that of an earlier world, and may be looked for again.
enum class JoinPhase : bool { kLooking, kArrived };

struct JoinRequest {
  MemberRecord self;  // nonce, pid and start time are filled in by join()
  std::string job_id = "default";
  std::uint64_t epoch = 0;
  StoreEnds store_ends = StoreEnds::kLater;
  // When this rank began to look for the others, for messages; default: when it joins.
  std::optional<base::TimePoint> since = {};
  // The store's own, if it sees its clients end; lives as long as the store.
  Wills* wills = nullptr;
  // How to tell that a member of an earlier round is dead. Default: is_certainly_gone, seen from self's host.
  std::function<bool(const Member&)> is_gone = {};
};

class Membership {
 public:
  // The store is shared with whoever uses it after the join; it must not be closed before leave().
  // `reached` says, if asked, how far it came, also after an error.
  static Result<std::unique_ptr<Membership>> join(std::shared_ptr<Store> store, JoinRequest request,
                                                  const Deadline& deadline, JoinPhase* reached = nullptr);
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  const Members& members() const { return members_; }
  // The keys that belong to this world alone; they are deleted with it.
  const RoundKeys& keys() const { return keys_; }

  // The world is made: from now on the end of this process is no failure of the join any more. Idempotent.
  void settle();

  enum class Left : std::uint8_t { kOthersRemain, kLast, kUnknown };
  // Gives the slot back; the last one to leave ends the round. The rank with which the store ends waits for
  // that. Takes at most 2 s, and if it has settled 30 s more, as long as others are about to; never fails
  // loudly: if the store is gone there is nothing to give back (kUnknown). Idempotent; does nothing in a
  // forked child.
  Left leave();

 private:
  Membership(std::shared_ptr<Store> store, RoundKeys keys, const JoinRequest& request, Members members);

  void take_back_wills();

  // Shared with the user of the rendezvous, who may drop it before or after this.
  const std::shared_ptr<Store> store_;
  const RoundKeys keys_;
  const Rank rank_;
  const StoreEnds store_ends_;
  Wills* const wills_;
  const Members members_;
  const int pid_;  // of the process that joined; a forked child has no part in it
  std::optional<Left> left_;
  bool settled_ = false;
};

}  // namespace lockstep::store
