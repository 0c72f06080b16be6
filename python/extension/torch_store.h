// A store of torch's as one of ours: what the ranks of a Python program meet in.
//
// The calls of a c10d::Store wait with its own timeout; here each waits until its deadline and gives the
// error of store.h. Values may be longer, and keys too, as far as that store allows.
// Thread safety: as that store's; torch's wait for each other.
// Does not: have queues, lists of keys or counts where that store has none (kUnsupported).
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "lockstep/store/store.h"

namespace lockstep::python {

class TorchStore final : public store::Store {
 public:
  // Shared with torch.
  explicit TorchStore(c10::intrusive_ptr<c10d::Store> inner);

  using When = store::When;
  using Keys = store::Keys;
  Status set(std::string_view key, ByteView value, When deadline) override;
  Result<Buffer> get(std::string_view key, When deadline) override;
  Result<Buffer> compare_set(std::string_view key, ByteView expected, ByteView desired,
                             When deadline) override;
  Result<std::int64_t> add(std::string_view key, std::int64_t amount, When deadline) override;
  Result<bool> check(Keys keys, When deadline) override;
  Status wait(Keys keys, When deadline) override;
  Result<bool> delete_key(std::string_view key, When deadline) override;
  Result<std::int64_t> num_keys(When deadline) override;
  Status append(std::string_view key, ByteView value, When deadline) override;
  Result<std::vector<Buffer>> multi_get(Keys keys, When deadline) override;
  // One after the other, where that store cannot do it in one step.
  Status multi_set(Keys keys, std::span<const Buffer> values, When deadline) override;
  Status queue_push(std::string_view queue, ByteView value, When deadline) override;
  Result<Buffer> queue_pop(std::string_view queue, OnEmpty on_empty, When deadline) override;
  Result<std::int64_t> queue_len(std::string_view queue, When deadline) override;
  Result<std::vector<std::string>> list_keys(When deadline) override;
  Result<std::unique_ptr<store::Store>> clone(When deadline) override;
  Duration timeout() const override { return timeout_.load(); }
  void set_timeout(Duration timeout) override { timeout_ = timeout; }
  const Clock& clock() const override { return Clock::steady(); }
  std::string description() const override { return "torch's store"; }

 private:
  template <typename Body>
  auto guarded(std::string_view what, const Body& body) const;
  Status wait_a_moment(const std::vector<std::string>& names, const Deadline& end) const;

  const c10::intrusive_ptr<c10d::Store> inner_;
  std::atomic<Duration> timeout_;
};

}  // namespace lockstep::python
