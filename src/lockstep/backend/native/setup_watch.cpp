#include "lockstep/backend/native/setup_watch.h"

#include <string>

#include "lockstep/base/status_bytes.h"
#include "lockstep/store/join_errors.h"
#include "lockstep/store/liveness.h"
#include "lockstep/store/round_keys.h"

namespace lockstep::backend {
namespace {

constexpr Duration kTelling = std::chrono::seconds(2);
// A process that ends closes its connections before it can be seen to have ended; one that gives up closes
// them before it says why.
constexpr Duration kEnding = std::chrono::seconds(1);
constexpr Duration kLookPeriod = std::chrono::milliseconds(10);

}  // namespace

Status SetupWatch::look() const {
  // What was said first: whoever has given up ends, too.
  const Deadline deadline = rendezvous_.store->clock().in(kTelling);
  const std::string key(store::kSetUpFailed);
  LOCKSTEP_ASSIGN(const bool failed, rendezvous_.store->check({&key, 1}, deadline));
  if (failed) {
    LOCKSTEP_ASSIGN(const Buffer why, rendezvous_.store->get(key, deadline));
    return base::parse_status(why);
  }
  for (const store::Member& member : rendezvous_.members) {
    if (!store::is_certainly_gone(member, rendezvous_.host)) continue;
    return store::join_errors::died_in_set_up(member);
  }
  return {};
}

Status SetupWatch::look_for_reason_of(const Status& met) const {
  Status found = look();
  const bool broken = met.code() == Code::kDisconnected && met.failure() == Failure::kNone;
  const Deadline patience = rendezvous_.store->clock().in(broken ? kEnding : Duration::zero());
  const std::string key(store::kSetUpFailed);
  while (found.ok() && !patience.expired()) {
    (void)rendezvous_.store->wait({&key, 1}, patience.at_most(kLookPeriod));
    found = look();
  }
  // A store that does not answer is no reason for something else.
  return found.code() == Code::kTimeout && found.failure() == Failure::kNone ? Status() : found;
}

Status SetupWatch::fail(const Status& met) const {
  const Status found = look_for_reason_of(met);
  const Status& status = found.ok() ? met : found;
  Cause cause = status.cause();
  if (!cause.rank) cause.rank = rendezvous_.rank;
  // A wait that has ended says nothing of who is to blame.
  if (!cause.peer && status.code() != Code::kTimeout) cause.peer = rendezvous_.rank;
  const Status said = status.with_cause(std::move(cause));
  const auto first = rendezvous_.store->compare_set(store::kSetUpFailed, {}, base::write_status(said),
                                                    rendezvous_.store->clock().in(kTelling));
  return first.ok() ? base::parse_status(*first) : said;
}

}  // namespace lockstep::backend
