// KeyValues is the state of a store: keys with their values, and queues. It answers at once and never waits;
// HashStore, FileStore and the server of TcpStore are thin shells around it, so that all give one answer.
//
// Thread safety: none; its owner guards it.
// Views that it returns live until its next change, and must not be handed back to it.
// Errors: kInvalid (kLimitExceeded beyond a limit), or kInternal with kNoMemory. After an error the state is
// what it was before the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/status.h"
#include "lockstep/store/store.h"

namespace lockstep::store {

class KeyValues {
 public:
  // Bounds on the whole, for a server. A queued value counts as one entry. Bytes are those of keys and values
  // with kEntryOverhead for each entry, which is about what an entry costs in memory.
  static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
  struct Limits {
    std::size_t max_entries = kNoLimit;
    std::size_t max_bytes = kNoLimit;
  };
  static constexpr std::size_t kEntryOverhead = 96;

  KeyValues() = default;
  explicit KeyValues(const Limits& limits) : limits_(limits) {}

  bool contains(std::string_view key) const { return values_.find(key) != values_.end(); }
  // Nothing if there is no such key.
  std::optional<ByteView> get(std::string_view key) const;
  bool check(Keys keys) const;
  // Those of `keys` that do not exist, in their order.
  std::vector<std::string> missing(Keys keys) const;

  Status set(std::string_view key, ByteView value);
  struct Compared {
    // The value after the call, or `expected` for a missing key; it lives as long as both.
    ByteView value;
    bool changed = false;
  };
  // As Store::compare_set.
  Result<Compared> compare_set(std::string_view key, ByteView expected, ByteView desired);
  // kInvalid if the value is not the text of a 64-bit number, or the sum is none.
  Result<std::int64_t> add(std::string_view key, std::int64_t amount);
  // False if there was no such key.
  bool delete_key(std::string_view key);
  Status append(std::string_view key, ByteView value);
  // Checks everything first. Of a key that is given twice the last value stays.
  Status multi_set(Keys keys, std::span<const ByteView> values);

  Status queue_push(std::string_view queue, ByteView value);
  // Nothing if the queue is empty.
  std::optional<Buffer> queue_pop(std::string_view queue);
  std::int64_t queue_len(std::string_view queue) const;

  std::int64_t num_keys() const { return static_cast<std::int64_t>(values_.size()); }
  std::vector<std::string> list_keys() const;
  // items_size() of all their values (store_errors.h). All of `keys` exist.
  std::size_t answer_size(Keys keys) const;

  // What the limits are compared with.
  std::size_t entries() const { return values_.size() + queued_; }
  std::size_t bytes() const { return bytes_; }

  // For snapshots: every key, then every queued value, those of one queue oldest first.
  using Visit = std::function<void(std::string_view name, ByteView value)>;
  void visit(const Visit& on_key, const Visit& on_queued) const;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  template <typename T>
  using Map = std::unordered_map<std::string, T, Hash, std::equal_to<>>;

  // Whether the whole stays within its limits with so many more entries and bytes.
  Status check_room(std::size_t more_entries, std::size_t more_bytes) const;
  // Room for `size` bytes as the value of `key`, instead of what it has.
  Status check_replacement(std::string_view key, const Buffer* current, std::size_t size) const;
  Status put(std::string_view key, Map<Buffer>::iterator place, ByteView value);

  Limits limits_;
  Map<Buffer> values_;
  Map<std::deque<Buffer>> queues_;  // none of them empty
  std::size_t queued_ = 0;
  std::size_t bytes_ = 0;
};

// A copy for the caller, or kNoMemory.
Result<Buffer> copy_of(ByteView value);

}  // namespace lockstep::store
