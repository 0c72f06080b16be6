// HashStore keeps everything in this process's memory: for ranks that are threads, and for a world of one.
//
// clone() gives another handle on the same data; the data lives as long as its last handle.
#pragma once

#include <atomic>
#include <memory>

#include "lockstep/store/store.h"

namespace lockstep::store {

class HashStore final : public Store {
 public:
  explicit HashStore(const StoreOptions& options = {});
  ~HashStore() override;

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
  Result<std::unique_ptr<Store>> clone(When deadline = {}) override;
  Duration timeout() const override { return timeout_.load(); }
  void set_timeout(Duration timeout) override { timeout_ = timeout; }
  const Clock& clock() const override { return clock_; }
  std::string description() const override { return "HashStore"; }

 private:
  struct Data;
  HashStore(std::shared_ptr<Data> data, const StoreOptions& options);

  const Clock& clock_;
  std::atomic<Duration> timeout_;
  std::shared_ptr<Data> data_;  // shared by the clones
};

}  // namespace lockstep::store

namespace lockstep {
using store::HashStore;
}
