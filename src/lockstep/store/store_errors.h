// The checks and errors that every Store shares, so that one mistake reads the same on all of them, and how a
// barrier counts.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/store/store.h"

namespace lockstep::store {

// kInvalid with kLimitExceeded if it is empty or too long. A queue's name is a key too.
Status check_key(std::string_view key);
// Of a call on several keys.
Status check_keys(std::string_view op, Keys keys);
Status check_value_size(std::string_view key, std::size_t size);
Status check_will_size(std::string_view key, std::size_t size);

// All that can be wrong with a call of multi_set.
Status check_multi_set(Keys keys, std::span<const ByteView> values);
// `size` as items_size() counts it, of what `op` would answer.
Status check_answer_size(std::string_view op, std::size_t size);

// What items of a call or an answer count against kMaxCallSize.
template <typename Items>
std::size_t items_size(const Items& items) {
  std::size_t size = 0;
  for (const auto& item : items) size += kItemOverhead + item.size();
  return size;
}

// kInvalid for a barrier of nobody.
Status check_barrier(std::string_view key, std::int64_t size);

// "\"a\", \"b\" and 3 more": what came from outside is quoted, long lists are cut.
std::string keys_text(Keys keys);

// An empty `store` leaves its name to the caller, as the server of TcpStore does.
//
// `missing` were still missing after `waited`.
Status wait_timed_out(std::string_view store, std::string_view op, Keys missing, Duration waited);
// Nobody pushed to `queue` in `waited`.
Status pop_timed_out(std::string_view store, std::string_view queue, Duration waited);
// `came` have come to the barrier `key`, ever; `size` make a round.
Status barrier_timed_out(std::string_view store, std::string_view key, std::int64_t came, std::int64_t size);
// queue_pop with OnEmpty::kFail.
Status queue_is_empty(std::string_view store, std::string_view queue);
Status out_of_memory(std::string_view what);
Status too_many_wills(std::string_view key);

// The round of a barrier of `size` to which its `arrived`-th caller belongs, both from 1.
struct BarrierRound {
  BarrierRound(std::int64_t arrived, std::int64_t size)
      : number((arrived - 1) / size), complete(arrived % size == 0) {}

  // What is set when the round is complete.
  std::string key_of(std::string_view barrier) const;
  std::string previous_key_of(std::string_view barrier) const;

  const std::int64_t number;
  const bool complete;
};

}  // namespace lockstep::store
