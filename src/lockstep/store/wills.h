// What a store says for a client that cannot say it any more: beside Store, for stores that see their clients
// end.
//
// A will is a key and a value. When the connection on which it was made ends, however it ends, the key is set
// to the value if it is missing. Thread safety: any thread.
// Implemented by TcpStore. Does not: survive the server, or go along with clone().
#pragma once

#include <string_view>

#include "lockstep/base/bytes.h"
#include "lockstep/base/status.h"
#include "lockstep/store/store.h"

namespace lockstep::store {

// Of one connection.
constexpr std::size_t kMaxWills = 8;
constexpr std::size_t kMaxWillSize = 4U << 10;

class Wills {
 public:
  virtual ~Wills() = default;
  // One for each key: the last counts, and an empty value takes it back. Sent, not waited for, in order with
  // the calls of this thread. kInvalid with kLimitExceeded for a value that is too long; one will too many is
  // reported as a refused set is.
  virtual Status set_will(std::string_view key, ByteView value, When deadline = {}) = 0;
};

}  // namespace lockstep::store
