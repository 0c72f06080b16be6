// Waiting in a store for ranks that may be lost meanwhile.
//
// Thread safety: as the store.
#pragma once

#include <functional>

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/store/store.h"

namespace lockstep::store {

// Ok while there is sense in waiting.
using Look = std::function<Status()>;

// As Store::wait and Store::multi_get, but what `look` finds ends the wait; it is asked at least every 100
// ms. An empty one finds nothing.
Status watched_wait(Store& store, Keys keys, const Deadline& deadline, const Look& look);
Result<std::vector<Buffer>> watched_get(Store& store, Keys keys, const Deadline& deadline, const Look& look);

}  // namespace lockstep::store
