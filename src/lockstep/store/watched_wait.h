// Waiting in a store for ranks that may be lost meanwhile, one of which may be the one that serves it.
//
// Thread safety: as the store.
#pragma once

#include <algorithm>
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

// A call that waits for nobody but the store, which may have stopped: `call` is made again and again, each
// time with a deadline of its own, until it is answered or `look` finds something, which is asked every
// second and more. It may be one that does no more when it is executed twice: check, get, set, delete_key, a
// compare_set of a key that is to be new.
template <typename Call>
auto watched_call(const Deadline& deadline, const Look& look, const Call& call) -> decltype(call(deadline));

namespace internal {
constexpr Duration kFirstTry = std::chrono::milliseconds(100);
constexpr Duration kLongestTry = std::chrono::milliseconds(800);
inline Code code_of(const Status& status) { return status.code(); }
template <typename T>
Code code_of(const Result<T>& result) {
  return result.status().code();
}
}  // namespace internal

template <typename Call>
auto watched_call(const Deadline& deadline, const Look& look, const Call& call) -> decltype(call(deadline)) {
  // A store that is only slow is given more time from try to try.
  for (Duration limit = internal::kFirstTry;; limit = std::min(2 * limit, internal::kLongestTry)) {
    auto answer = call(deadline.at_most(limit));
    if (internal::code_of(answer) != Code::kTimeout || deadline.expired()) return answer;
    if (look) LOCKSTEP_TRY(look());
  }
}

}  // namespace lockstep::store
