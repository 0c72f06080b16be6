// FileStore keeps everything in one file that its users share: processes of one host, or of several hosts
// with a common folder. Slower than TcpStore, and no server has to be up.
//
// A process that is killed at any point leaves a file that the others go on with. Waiting is polling, at
// first every 0.1 ms, at last every 50 ms, and at once for what the same handle sets. Not for a file that
// another user can write to: what it holds is believed. Errors: kDisconnected with kStoreLost, for good, once
// the file was removed or replaced by another store; kInternal with kNoSpace when the disk is full (the store
// keeps what it had); kInternal with kCorruptFrame for a damaged file; kInvalid with kForked in a child that
// was forked after open(). Does not: remove its file.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "lockstep/base/mutex.h"
#include "lockstep/store/log_file.h"
#include "lockstep/store/store.h"

namespace lockstep::store {

class FileStore final : public Store {
 public:
  // Makes the file, with rights for its owner only, if there is none.
  static Result<std::unique_ptr<FileStore>> open(const std::string& path, const StoreOptions& options = {});

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
  std::string description() const override { return "FileStore " + path_; }

 private:
  struct Call {
    std::string_view op;
    Deadline until;
    base::TimePoint start;

    Duration waited() const { return until.clock().now() - start; }
  };
  FileStore(LogFile file, const StoreOptions& options);
  Call start(std::string_view op, When deadline) const;

  // What `body(state)` answers, with the file locked for reading and up to date.
  template <typename Body>
  auto read(const Call& call, Body&& body) -> std::invoke_result_t<Body, const KeyValues&>;
  // What `body(state, record)` answers, with the file locked for writing. It changes the state and says in
  // `record` how; a record without entries is not written.
  template <typename Body>
  auto change(const Call& call, Body&& body) -> std::invoke_result_t<Body, KeyValues&, LogRecord&>;
  // What `look(state)` finds: asked again until there is something, or the deadline has passed.
  template <typename T, typename Look>
  Result<std::optional<T>> poll(const Call& call, Look&& look);

  Result<std::vector<Buffer>> get_all(std::string_view op, Keys keys, When deadline);
  // Returns with the file locked; ends by the deadline of the call.
  Status enter(const Call& call, LockKind kind) LOCKSTEP_REQUIRES(mutex_);
  // Names the file, and keeps a loss for good.
  Status failed(const Status& status) LOCKSTEP_REQUIRES(mutex_);

  const std::string path_;
  const Clock& clock_;
  std::atomic<Duration> timeout_;
  Mutex mutex_;
  CondVar changed_;  // by this handle
  LogFile file_ LOCKSTEP_GUARDED_BY(mutex_);
  Status lost_ LOCKSTEP_GUARDED_BY(mutex_);  // ok until the store is lost
};

}  // namespace lockstep::store

namespace lockstep {
using store::FileStore;
}
