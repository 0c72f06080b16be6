// The checks and errors that every Store shares, so that one mistake reads the same on all of them.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/store/store.h"

namespace lockstep::store {

// kInvalid with kLimitExceeded if it is empty or too long. A queue's name is a key too.
Status check_key(std::string_view key);
Status check_keys(Keys keys);
Status check_value_size(std::string_view key, std::size_t size);

// "\"a\", \"b\" and 3 more": what came from outside is quoted, long lists are cut.
std::string keys_text(Keys keys);

// An empty `store` leaves its name to the caller, as the server of TcpStore does.
//
// `missing` were still missing after `waited`.
Status wait_timed_out(std::string_view store, std::string_view op, Keys missing, Duration waited);
// Nobody pushed to `queue` in `waited`.
Status pop_timed_out(std::string_view store, std::string_view queue, Duration waited);
// queue_pop with OnEmpty::kFail.
Status queue_is_empty(std::string_view store, std::string_view queue);
Status out_of_memory(std::string_view what);

}  // namespace lockstep::store
