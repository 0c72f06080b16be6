#include "lockstep/backend/store_barriers.h"

#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/store/watched_wait.h"

namespace lockstep::backend {
namespace {

std::string key_of(std::uint64_t sequence, Rank member) {
  return cat("monitored_barrier/", sequence, "/", member);
}

}  // namespace

Deadline StoreBarriers::soon() const { return who_.store()->clock().in(store::kDefaultTimeout); }

Status StoreBarriers::meet(std::uint64_t sequence, const Deadline& deadline,
                           const std::function<Status()>& look) {
  LOCKSTEP_TRY(look());
  store::Store& store = *who_.store();
  std::vector<std::string> keys;
  for (int i = 0; i < who_.size().value; ++i) keys.push_back(key_of(sequence, Rank{i}));
  LOCKSTEP_TRY(store.set(key_of(sequence, who_.rank()), bytes_of("here"), soon()));
  Status waited = store::watched_wait(store, keys, deadline, look);
  if (waited.code() == Code::kTimeout) waited = find_missing(sequence);
  LOCKSTEP_TRY(waited);
  // Whoever has come to this one has returned from the one before. That its key stays does no harm.
  if (met_ != 0) (void)store.delete_key(key_of(met_, who_.rank()), soon());
  met_ = sequence;
  return {};
}

Status StoreBarriers::find_missing(std::uint64_t sequence) const {
  std::vector<Rank> missing;
  for (int i = 0; i < who_.size().value; ++i) {
    const std::string key = key_of(sequence, Rank{i});
    LOCKSTEP_ASSIGN(const bool here, who_.store()->check({&key, 1}, soon()));
    if (!here) missing.push_back(who_.world_rank(Rank{i}));
  }
  if (missing.empty()) return {};
  return Status::timeout(
      cat("rank ", who_.own(), ": monitored_barrier #", sequence, " of ", base::quoted(who_.name()),
          ": rank ", base::ranks_text(missing), " did not come"),
      {.failure = Failure::kMissingRanks,
       .rank = who_.own(),
       .op = "monitored_barrier",
       .sequence = sequence,
       .group = who_.name(),
       .missing = missing});
}

}  // namespace lockstep::backend
