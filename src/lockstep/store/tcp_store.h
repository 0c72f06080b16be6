// TcpStore: the client of a store that a TcpStoreServer serves, here or on another host.
//
// Connects over the server's abstract AF_UNIX socket where it runs on this host in this network namespace,
// else over TCP; the handshake and the answers are the same. Over TCP every frame is sealed; on one host
// frames go through pipes that the kernel gives to nobody else, or over that socket, and are not
// (docs/wire/store.md).
//
// set, set_will and queue_push of values up to kMaxPosted are sent and not waited for, as torch's TCPStore
// does with set:
// - they are executed before any later operation of the same thread on any TcpStore, and before any
//   operation on this one that another thread begins after they have returned;
// - another client sees them once the server has executed them, microseconds later as a rule. Who tells
//   others by another way that a value is there first calls something that returns a value;
// - what only the server can refuse (its memory limit) is reported by the first call that begins after the
//   refusal has come, which is the second after the write at the latest; that call is not executed.
// Everything else is answered before it returns.
//
// Thread safety: any thread; a call that waits does not hold up the calls of other threads.
// Deadlines: a get, wait, multi_get, queue_pop or barrier that runs out is answered by the server, which
// knows the missing keys; if nothing is heard from the server until 250 ms after the deadline, the call ends
// by itself, and the error says that the store does not answer.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "lockstep/store/store.h"
#include "lockstep/store/tcp_options.h"
#include "lockstep/store/tcp_server.h"
#include "lockstep/store/wills.h"

namespace lockstep::store {

// The largest value that set and queue_push do not wait for.
constexpr std::size_t kMaxPosted = 16U << 10;

class Channel;
struct Request;

class TcpStore final : public Store, public Wills {
 public:
  // Tries until the deadline while nobody listens there yet. A server that refuses (wrong job, secret, epoch
  // or version) ends it at once, with kRejected or kVersionMismatch.
  static Result<std::unique_ptr<TcpStore>> connect(const TcpStoreOptions& options, const Deadline& deadline);
  ~TcpStore() override;

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
  // One round trip.
  Status barrier(std::string_view key, WorldSize size, When deadline = {}) override;

  Status set_will(std::string_view key, ByteView value, When deadline = {}) override;

  Result<std::unique_ptr<Store>> clone(When deadline = {}) override;

  Duration timeout() const override { return Duration(timeout_.load(std::memory_order_relaxed)); }
  void set_timeout(Duration timeout) override { timeout_.store(timeout.count(), std::memory_order_relaxed); }
  const Clock& clock() const override { return clock_; }
  std::string description() const override;

  // True if the connection runs over the AF_UNIX socket.
  bool is_local() const { return local_ == LocalSocket::kOn; }

 private:
  TcpStore(const TcpStoreOptions& options, const Clock& clock, std::shared_ptr<Channel> channel,
           LocalSocket local);

  Deadline resolve(const When& deadline) const;
  // Sends, after what this thread has posted on other connections has been executed.
  template <typename OnBody>
  Status call(Request& request, const When& deadline, const OnBody& on_body);
  Status write(Request& request, const When& deadline);

  const TcpStoreOptions options_;
  const Clock& clock_;
  // Shared with the thread-local note of where a thread has posted last.
  const std::shared_ptr<Channel> channel_;
  const LocalSocket local_;
  std::atomic<Duration::rep> timeout_;
};

// A server in this process together with a client of it; for the rank that serves the others.
struct HostedStore {
  std::unique_ptr<TcpStoreServer> server;
  std::unique_ptr<TcpStore> store;
};
// The client belongs to the first of the server's tenants.
Result<HostedStore> host_store(TcpServerOptions options, const Deadline& deadline);

}  // namespace lockstep::store

namespace lockstep {
using store::host_store;
using store::TcpStore;
}  // namespace lockstep
