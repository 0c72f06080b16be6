// A Store is the small key-value service through which the ranks of a job meet.
//
// The contract is that of torch's TCPStore, in every corner, on every implementation; where torch's own
// stores disagree with each other docs/stores.md says which answer is ours.
//
// Thread safety: every method may be called from any thread. Operations of one thread take effect in order.
// Deadlines: every call ends by its deadline, which is timeout() from the call when none is given; the error
// is kTimeout and names the keys that were waited for. Errors: kInvalid for a call that can never work (the
// store stays usable), kDisconnected with kStoreLost once the server is gone (every later call reports it
// again). Limits: a key is 1 to 1,024 bytes, a value at most 8 MiB; a call has at most kMaxKeysPerCall keys,
// and it and its answer at most kMaxCallSize in all; beyond that kInvalid with kLimitExceeded. Does not:
// retry, or reconnect. Implemented by HashStore (one process), FileStore (a shared file), TcpStore (client of
// a server) and PrefixStore (a namespace inside another store).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"

namespace lockstep::store {

constexpr std::size_t kMaxKeySize = 1024;
constexpr std::size_t kMaxValueSize = 8U << 20;
// Of a call on several keys.
constexpr std::size_t kMaxKeysPerCall = 128U << 10;
// Of its keys and values, and of what it or list_keys is answered; each item counts kItemOverhead more. What
// fits is one message of TcpStore, with room for its head.
constexpr std::size_t kMaxCallSize = (32U << 20) - 64;
constexpr std::size_t kItemOverhead = 4;
constexpr Duration kDefaultTimeout = std::chrono::seconds(300);

// What every store can be made with.
struct StoreOptions {
  Duration timeout = kDefaultTimeout;  // for a call that is given no deadline
  const Clock* clock = &Clock::steady();
};

using When = std::optional<Deadline>;
using Keys = std::span<const std::string>;

class Store {
 public:
  virtual ~Store() = default;

  virtual Status set(std::string_view key, ByteView value, When deadline = {}) = 0;
  // Waits until the key exists.
  virtual Result<Buffer> get(std::string_view key, When deadline = {}) = 0;
  // Sets `desired` if the value is `expected`, or if the key is missing and `expected` is empty. Returns the
  // value after that; for a missing key and a non-empty `expected`, `expected` itself, as torch does.
  virtual Result<Buffer> compare_set(std::string_view key, ByteView expected, ByteView desired,
                                     When deadline = {}) = 0;
  // The value as a decimal number plus `amount`; a missing key counts as 0. kInvalid if it is not a number.
  virtual Result<std::int64_t> add(std::string_view key, std::int64_t amount, When deadline = {}) = 0;
  // True if all keys exist. Does not wait.
  virtual Result<bool> check(Keys keys, When deadline = {}) = 0;
  // Until all keys exist.
  virtual Status wait(Keys keys, When deadline = {}) = 0;
  // True if there was such a key.
  virtual Result<bool> delete_key(std::string_view key, When deadline = {}) = 0;
  virtual Result<std::int64_t> num_keys(When deadline = {}) = 0;
  // Makes the key if it is missing.
  virtual Status append(std::string_view key, ByteView value, When deadline = {}) = 0;
  // Waits until all keys exist; values in the order of `keys`.
  virtual Result<std::vector<Buffer>> multi_get(Keys keys, When deadline = {}) = 0;
  // All or nothing, seen as one step by others. As many values as keys.
  virtual Status multi_set(Keys keys, std::span<const Buffer> values, When deadline = {}) = 0;
  // Queues are a namespace of their own: a queue and a key of one name do not meet.
  virtual Status queue_push(std::string_view queue, ByteView value, When deadline = {}) = 0;
  enum class OnEmpty : bool { kFail, kWait };
  // kFail on an empty queue is kTimeout with kQueueEmpty, at once.
  virtual Result<Buffer> queue_pop(std::string_view queue, OnEmpty on_empty = OnEmpty::kWait,
                                   When deadline = {}) = 0;
  virtual Result<std::int64_t> queue_len(std::string_view queue, When deadline = {}) = 0;
  // In no particular order.
  virtual Result<std::vector<std::string>> list_keys(When deadline = {}) = 0;
  // Returns once `size` callers have come to `key`. The same callers may come again, to the same key, as
  // often as they like. A timeout says how many have come; after it the key is spent, because those who came
  // still count. Leaves the keys `key` and `key`/<round> behind. Here it is made of the calls above; a store
  // that can do it in one step does.
  virtual Status barrier(std::string_view key, WorldSize size, When deadline = {});

  // Another handle on the same data, with its own timeout; for TcpStore a connection of its own, so that a
  // blocking call on one does not hold up the other.
  virtual Result<std::unique_ptr<Store>> clone(When deadline = {}) = 0;

  virtual Duration timeout() const = 0;
  virtual void set_timeout(Duration timeout) = 0;
  virtual const Clock& clock() const = 0;
  // For messages: "TcpStore 10.0.0.1:29400".
  virtual std::string description() const = 0;
};

}  // namespace lockstep::store

namespace lockstep {
using store::Store;
}
