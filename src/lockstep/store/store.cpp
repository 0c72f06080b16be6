#include "lockstep/store/store.h"

#include "lockstep/base/text.h"

namespace lockstep::store {

// Callers are counted under `key`; the one that completes a round sets `key`/<round>, for which the others
// wait. Whoever comes to a round has left the one before it, so its last caller may delete that one's key.
Status barrier(Store& store, std::string_view key, WorldSize size, When deadline) {
  if (size.value < 1) {
    return Status::invalid(cat("barrier ", base::quoted(key), ": a size of ", size, " makes no sense"));
  }
  const Deadline until = deadline.value_or(store.clock().in(store.timeout()));
  const auto round_key = [&](std::int64_t round) { return cat(key, "/", round); };
  LOCKSTEP_ASSIGN(const std::int64_t arrived, store.add(key, 1, until));
  const std::int64_t round = (arrived - 1) / size.value;
  if (arrived == (round + 1) * size.value) {
    LOCKSTEP_TRY(store.set(round_key(round), {}, until));
    return round == 0 ? Status() : store.delete_key(round_key(round - 1), until).status();
  }
  const std::vector<std::string> done = {round_key(round)};
  Status status = store.wait(done, until);
  if (status.code() != Code::kTimeout) return status;
  // The deadline is over, so this asks with a little time of its own, only to say more.
  const Result<std::int64_t> came = store.add(key, 0, until.clock().in(std::chrono::seconds(5)));
  const std::string count = came.ok() ? cat(*came - round * size.value) : std::string("an unknown number");
  return Status::timeout(cat(store.description(), ": barrier ", base::quoted(key), " timed out: ", count,
                             " of ", size, " have come"),
                         {.op = "barrier"});
}

}  // namespace lockstep::store
