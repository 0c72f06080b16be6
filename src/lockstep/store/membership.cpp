#include "lockstep/store/membership.h"

#include <unistd.h>

#include "lockstep/base/crypto.h"
#include "lockstep/base/handshake.h"
#include "lockstep/base/text.h"
#include "lockstep/store/join.h"
#include "lockstep/store/join_wills.h"
#include "lockstep/store/liveness.h"
#include "lockstep/store/logger.h"
#include "lockstep/store/rounds.h"

namespace lockstep::store {
namespace {

using std::chrono::seconds;

// For what is said on the way out, after the join's own deadline.
constexpr Duration kLastWords = seconds(2);
// How long rank 0 keeps its store up for members that have not read the verdict yet.
constexpr Duration kReading = seconds(5);
// The same for members whose world is not made yet, and how often it looks whether one of them has died.
constexpr Duration kMaking = seconds(30);
constexpr Duration kLook = std::chrono::milliseconds(200);

// Lets the others know that this rank has the table, and stays until all have it if the store ends with it.
// The world is complete by now, so that trouble here is no failure of the join.
void confirm(Store& store, const RoundKeys& keys, const JoinRequest& request, const Deadline& deadline) {
  const auto seen = store.add(keys.seen(), 1, deadline);
  Status status = seen.status();
  if (seen.ok() && *seen == request.self.world_size.value) status = store.set(keys.all_seen(), {}, deadline);
  const std::string all_seen[] = {keys.all_seen()};
  if (status.ok() && request.store_ends == StoreEnds::kWithThisRank)
    status = store.wait(all_seen, deadline.at_most(kReading));
  if (!status.ok()) kRendezvousLog.debug(cat("the join is complete, but: ", status.message()));
}

// Until every member's world is made, or will not be.
void await_worlds(Store& store, const RoundKeys& keys) {
  const Deadline deadline = store.clock().in(kMaking);
  const std::string all_made[] = {keys.all_made()};
  const auto is_there = [&store](const std::string& key) {
    const auto found = store.check({&key, 1});
    return !found.ok() || *found;
  };
  while (!deadline.expired()) {
    if (store.wait(all_made, deadline.at_most(kLook)).code() != Code::kTimeout) return;
    if (is_there(keys.set_up_failed()) || is_there(keys.closed())) return;
  }
  kRendezvousLog.debug("some ranks have not made their world; the store ends without them");
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
      wills_(request.wills),
      members_(std::move(members)),
      pid_(::getpid()) {}

Membership::~Membership() { leave(); }

void Membership::settle() {
  if (settled_ || ::getpid() != pid_) return;
  settled_ = true;
  take_back_wills();
  const Deadline deadline = store_->clock().in(kLastWords);
  const auto made = store_->add(keys_.made(), 1, deadline);
  Status status = made.status();
  if (made.ok() && *made == static_cast<std::int64_t>(members_.size()))
    status = store_->set(keys_.all_made(), {}, deadline);
  if (!status.ok()) kRendezvousLog.debug(cat("the world is made, but: ", status.message()));
}

void Membership::take_back_wills() {
  JoinWills(wills_, keys_, members_[static_cast<std::size_t>(rank_.value)]).take_back();
}

Membership::Left Membership::leave() {
  if (left_) return *left_;
  left_ = Left::kUnknown;
  if (::getpid() != pid_) return *left_;
  if (!settled_) take_back_wills();
  // Those whose world is still being made need the store.
  if (settled_ && store_ends_ == StoreEnds::kWithThisRank) await_worlds(*store_, keys_);
  const Deadline deadline = store_->clock().in(kLastWords);
  const Status given_back = store_->delete_key(keys_.slot(rank_), deadline).status();
  // One that is stopped does both when it comes back.
  if (!given_back.ok() && given_back.code() != Code::kTimeout) return *left_;
  const auto left = store_->add(keys_.left(), 1, deadline);
  if (!left.ok()) return *left_;
  left_ = *left < static_cast<std::int64_t>(members_.size()) ? Left::kOthersRemain : Left::kLast;
  if (*left_ == Left::kLast) {
    if (const Status status = close_round(*store_, keys_, deadline); !status.ok())
      kRendezvousLog.debug(cat("the last rank has left, but: ", status.message()));
  }
  if (store_ends_ == StoreEnds::kWithThisRank) {
    const std::string closed[] = {keys_.closed()};
    if (!store_->wait(closed, deadline).ok())
      kRendezvousLog.debug("some ranks have not left; the store ends without them");
    if (const Status status = end_store(*store_, keys_, store_->clock().in(kLastWords)); !status.ok())
      kRendezvousLog.debug(cat("the store ends, but: ", status.message()));
  }
  return *left_;
}

}  // namespace lockstep::store
