#include "lockstep/backend/meet_in_store.h"

#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/store/watched_wait.h"

namespace lockstep::backend {

Status meet_in_store(const Membership& who, std::uint64_t sequence, const Deadline& deadline,
                     const std::function<Status()>& look) {
  LOCKSTEP_TRY(look());
  store::Store& store = *who.store();
  std::vector<std::string> keys;
  for (int i = 0; i < who.size().value; ++i) keys.push_back(cat("monitored_barrier/", sequence, "/", i));
  // A call of the store may take a little longer than the barrier itself.
  const auto soon = [&store] { return store.clock().in(store::kDefaultTimeout); };
  LOCKSTEP_TRY(store.set(keys[static_cast<std::size_t>(who.rank().value)], bytes_of("here"), soon()));
  Status waited = store::watched_wait(store, keys, deadline, look);
  if (waited.code() != Code::kTimeout) return waited;
  std::vector<Rank> missing;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    LOCKSTEP_ASSIGN(const bool here, store.check({&keys[i], 1}, soon()));
    if (!here) missing.push_back(who.members()[i]);
  }
  if (missing.empty()) return {};
  return Status::timeout(cat("rank ", who.own(), ": monitored_barrier #", sequence, " of ",
                             base::quoted(who.name()), ": rank ", base::ranks_text(missing), " did not come"),
                         {.failure = Failure::kMissingRanks,
                          .rank = who.own(),
                          .op = "monitored_barrier",
                          .sequence = sequence,
                          .group = who.name(),
                          .missing = missing});
}

}  // namespace lockstep::backend
