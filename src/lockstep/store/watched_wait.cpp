#include "lockstep/store/watched_wait.h"

namespace lockstep::store {
namespace {

constexpr Duration kSlice = std::chrono::milliseconds(100);

}  // namespace

Status watched_wait(Store& store, Keys keys, const Deadline& deadline, const Look& look) {
  while (true) {
    Status waited = store.wait(keys, deadline.at_most(kSlice));
    if (waited.code() != Code::kTimeout || deadline.expired()) return waited;
    if (look) LOCKSTEP_TRY(look());
  }
}

Result<std::vector<Buffer>> watched_get(Store& store, Keys keys, const Deadline& deadline, const Look& look) {
  LOCKSTEP_TRY(watched_wait(store, keys, deadline, look));
  return watched_call(deadline, look, [&](const Deadline& until) { return store.multi_get(keys, until); });
}

}  // namespace lockstep::store
