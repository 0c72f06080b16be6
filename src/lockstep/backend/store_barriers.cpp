#include "lockstep/backend/store_barriers.h"

#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/store/watched_wait.h"

namespace lockstep::backend {
namespace {

// How much longer than the barrier itself its calls of the store may take.
constexpr Duration kLonger = std::chrono::seconds(1);

std::string key_of(std::uint64_t sequence, Rank member) {
  return cat("monitored_barrier/", sequence, "/", member);
}

}  // namespace

Status StoreBarriers::meet(std::uint64_t sequence, const Deadline& deadline, const Others& others) {
  LOCKSTEP_TRY(others.look());
  store::Store& store = *who_.store();
  std::vector<std::string> keys;
  for (int i = 0; i < who_.size().value; ++i) keys.push_back(key_of(sequence, Rank{i}));
  // Also one that has no time left says that it is here.
  const Deadline said_by = deadline.remaining() < kLonger ? deadline.clock().in(kLonger) : deadline;
  const Status said = store::watched_call(said_by, others.look, [&](const Deadline& until) {
    return store.set(key_of(sequence, who_.rank()), bytes_of("here"), until);
  });
  if (said.code() == Code::kTimeout) return without_store(sequence, others, said);
  LOCKSTEP_TRY(said);
  Status waited = store::watched_wait(store, keys, deadline, others.look);
  if (waited.code() == Code::kTimeout) waited = find_missing(sequence, others);
  LOCKSTEP_TRY(waited);
  // Whoever has come to this one has returned from the one before. That its key stays does no harm.
  if (met_ != 0) (void)store.delete_key(key_of(met_, who_.rank()), store.clock().in(kLonger));
  met_ = sequence;
  return {};
}

Status StoreBarriers::find_missing(std::uint64_t sequence, const Others& others) const {
  const Deadline deadline = who_.store()->clock().in(kLonger);
  std::vector<Rank> ranks;
  for (int i = 0; i < who_.size().value; ++i) {
    const std::string key = key_of(sequence, Rank{i});
    const auto here = store::watched_call(deadline, others.look, [&](const Deadline& until) {
      return who_.store()->check({&key, 1}, until);
    });
    if (here.status().code() == Code::kTimeout) return without_store(sequence, others, here.status());
    LOCKSTEP_TRY(here.status());
    if (!*here) ranks.push_back(who_.world_rank(Rank{i}));
  }
  return ranks.empty() ? Status() : missing(sequence, ranks, "");
}

Status StoreBarriers::missing(std::uint64_t sequence, const std::vector<Rank>& ranks,
                              std::string_view known_by) const {
  return Status::timeout(
      cat("rank ", who_.own(), ": monitored_barrier #", sequence, " of ", base::quoted(who_.name()),
          ": rank ", base::ranks_text(ranks), " did not come", known_by),
      {.failure = Failure::kMissingRanks,
       .rank = who_.own(),
       .op = "monitored_barrier",
       .sequence = sequence,
       .group = who_.name(),
       .missing = ranks});
}

Status StoreBarriers::without_store(std::uint64_t sequence, const Others& others, const Status& met) const {
  LOCKSTEP_TRY(others.look());
  const std::vector<Rank> absent = others.absent ? others.absent() : std::vector<Rank>();
  if (!absent.empty())
    return missing(sequence, absent, ", as far as is known without the store, which does not answer");
  return Status::disconnected(cat("rank ", who_.own(), ": monitored_barrier #", sequence, " of ",
                                  base::quoted(who_.name()), ": the store does not answer: ", met.message()),
                              {.failure = Failure::kStoreLost,
                               .rank = who_.own(),
                               .op = "monitored_barrier",
                               .sequence = sequence,
                               .group = who_.name()});
}

}  // namespace lockstep::backend
