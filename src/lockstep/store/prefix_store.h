// PrefixStore is a namespace inside another store: its key k is the other's key `prefix`/k, and its queues
// are named the same way. Prefixes nest.
//
// num_keys and list_keys speak of its own keys only, without the prefix; both ask the other store for all its
// keys. Its timeout is its own and starts as the other's. Prefix and key share the limit on a key's size.
// Messages name the keys as the other store has them.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "lockstep/store/store.h"

namespace lockstep::store {

class PrefixStore final : public Store {
 public:
  // `inner` is shared because many prefixes of one job live on one connection.
  PrefixStore(std::string_view prefix, std::shared_ptr<Store> inner);

  Status set(std::string_view key, ByteView value, When deadline = {}) override;
  Result<Buffer> get(std::string_view key, When deadline = {}) override;
  Result<Buffer> compare_set(std::string_view key, ByteView expected, ByteView desired,
                             When deadline = {}) override;
  Result<std::int64_t> add(std::string_view key, std::int64_t amount, When deadline = {}) override;
  Result<bool> check(Keys keys, When deadline = {}) override;
  Status wait(Keys keys, When deadline = {}) override;
  Result<bool> delete_key(std::string_view key, When deadline = {}) override;
  Result<std::int64_t> num_keys(When deadline = {}) override;
  Status append(std::string_view key, ByteView value, When deadline = {}) override;
  Result<std::vector<Buffer>> multi_get(Keys keys, When deadline = {}) override;
  Status multi_set(Keys keys, std::span<const Buffer> values, When deadline = {}) override;
  Status queue_push(std::string_view queue, ByteView value, When deadline = {}) override;
  Result<Buffer> queue_pop(std::string_view queue, OnEmpty on_empty = OnEmpty::kWait,
                           When deadline = {}) override;
  Result<std::int64_t> queue_len(std::string_view queue, When deadline = {}) override;
  Result<std::vector<std::string>> list_keys(When deadline = {}) override;
  Status barrier(std::string_view key, WorldSize size, When deadline = {}) override;
  // The clone has a clone of the other store.
  Result<std::unique_ptr<Store>> clone(When deadline = {}) override;
  Duration timeout() const override { return timeout_.load(); }
  void set_timeout(Duration timeout) override { timeout_ = timeout; }
  const Clock& clock() const override { return inner_->clock(); }
  std::string description() const override;

 private:
  Result<std::string> inner_key(std::string_view key) const;
  Result<std::vector<std::string>> inner_keys(Keys keys) const;
  Deadline until(When deadline) const { return deadline.value_or(clock().in(timeout())); }

  const std::string prefix_;  // with the slash at its end
  const std::shared_ptr<Store> inner_;
  std::atomic<Duration> timeout_;
};

}  // namespace lockstep::store

namespace lockstep {
using store::PrefixStore;
}
