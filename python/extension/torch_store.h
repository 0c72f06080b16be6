// A store of torch's as one of ours: what the ranks of a Python program meet in.
//
// The calls of a c10d::Store wait with its own timeout; here each waits until its deadline and gives the
// error of store.h. Values may be longer, and keys too, as far as that store allows.
// One whose server or file is gone is lost at once (kStoreLost): torch would look for the file until the
// store's own timeout, and prints a warning with a stack for a server that does not answer. Thread safety: as
// that store's; torch's wait for each other. Does not: have queues, lists of keys or counts where that store
// has none (kUnsupported).
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/store/store.h"

namespace lockstep::python {

class TorchStore final : public store::Store {
 public:
  // When a store of torch's ends. One that env:// or tcp:// has made for the default group is served by rank
  // 0 as long as that is in the group.
  enum class End : std::uint8_t { kUnknown, kWithThisRank, kWithRank0 };
  // Shared with torch.
  explicit TorchStore(c10::intrusive_ptr<c10d::Store> inner, End end = End::kUnknown);

  // Whether torch has made it by env:// or tcp://, rather than been given it. Its own prefix tells.
  static bool is_of_rendezvous(const c10::intrusive_ptr<c10d::Store>& store);

  // This rank leaves: from now on nothing is asked of a server that has ended, and who waits for keys, as for
  // the members of a new group, gets kStoreLost. If it ends with this rank, torch can end it at once: it is
  // let go of here, and every call is kStoreLost.
  void leave();
  // Where it ends with rank 0: until it has, or the deadline. Who joins again before that, by the same
  // address, would meet in what is about to end.
  void wait_for_end(const Deadline& deadline) const;

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
  // `body` is given the store of torch's.
  template <typename Body>
  auto guarded(std::string_view what, const Body& body) const;
  Status wait_a_moment(const std::vector<std::string>& names, const Deadline& end) const;
  // Nothing once it was let go of.
  c10::intrusive_ptr<c10d::Store> inner() const;
  Status lost(std::string_view what) const;
  Status ends_soon(std::string_view what) const;

  const End end_;
  mutable Mutex mutex_;
  c10::intrusive_ptr<c10d::Store> inner_ LOCKSTEP_GUARDED_BY(mutex_);
  std::atomic<bool> is_leaving_ = false;
  std::atomic<Duration> timeout_;
};

}  // namespace lockstep::python
