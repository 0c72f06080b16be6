#include "lockstep/store/store.h"

#include "lockstep/base/text.h"
#include "lockstep/store/store_errors.h"

namespace lockstep::store {

// Callers are counted under `key`; the one that completes a round sets `key`/<round>, for which the others
// wait. Whoever comes to a round has left the one before it, so its last caller may delete that one's key.
Status Store::barrier(std::string_view key, WorldSize size, When deadline) {
  LOCKSTEP_TRY(check_barrier(key, size.value));
  const Deadline until = deadline.value_or(clock().in(timeout()));
  LOCKSTEP_ASSIGN(const std::int64_t arrived, add(key, 1, until));
  const BarrierRound round(arrived, size.value);
  if (round.complete) {
    LOCKSTEP_TRY(set(round.key_of(key), {}, until));
    return round.number == 0 ? Status() : delete_key(round.previous_key_of(key), until).status();
  }
  const std::vector<std::string> done = {round.key_of(key)};
  Status status = wait(done, until);
  if (status.code() != Code::kTimeout) return status;
  // The deadline is over, so this asks with a little time of its own, only to say more.
  const Result<std::int64_t> came = add(key, 0, until.clock().in(std::chrono::seconds(5)));
  return came.ok() ? barrier_timed_out(description(), key, *came, size.value) : status;
}

}  // namespace lockstep::store
