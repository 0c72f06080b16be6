// One job on a store's server: who may come in, its keys, its queues, and who waits for them.
//
// Pure but for time: requests come in parsed, answers go out through Answers, and whoever owns the tenant
// calls expire() when next_deadline() has come. So it is tested without a socket. Thread safety: none; lives
// on the server's loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/handshake.h"
#include "lockstep/base/secret.h"
#include "lockstep/store/key_values.h"
#include "lockstep/store/tcp_options.h"
#include "lockstep/store/tcp_waiters.h"
#include "lockstep/store/tcp_wire.h"

namespace lockstep::store {

class Tenant {
 public:
  Tenant(const TenantOptions& options, const Clock& clock);

  const base::JobHash& job() const { return job_; }
  std::uint64_t epoch() const { return epoch_; }
  const Secret& secret() const { return secret_; }
  std::size_t max_connections() const { return max_connections_; }

  // Answers now, or later if the request waits. Answers of other clients that this request releases are given
  // before it returns.
  void execute(const Request& request, Answers& client);
  // The client has gone: its wills are executed, as if another had set them.
  void execute_wills(const Answers& client);
  // Nothing is answered to it any more, and nothing is said for it.
  void forget(const Answers& client);

  std::optional<base::TimePoint> next_deadline() const { return waiters_.next_deadline(); }
  // Tells those whose time is over which keys are missing.
  void expire();

  // Connections, and the bytes that they hold for this tenant.
  std::size_t connections() const { return connections_; }
  void connected() { ++connections_; }
  void disconnected() { --connections_; }
  void charge(std::size_t bytes) { in_flight_ += bytes; }
  void discharge(std::size_t bytes) { in_flight_ -= bytes; }
  bool over_memory() const { return in_flight_ + waiters_.memory() > max_memory_; }

 private:
  void execute_checked(const Request& request, Answers& client);
  void set(const Request& request, Answers& client);
  void append(const Request& request, Answers& client);
  void compare_set(const Request& request, Answers& client);
  void add(const Request& request, Answers& client);
  void multi_set(const Request& request, Answers& client);
  void set_will(const Request& request, Answers& client);
  void queue_push(const Request& request, Answers& client);
  void queue_pop(const Request& request, Answers& client);
  void list_keys(const Request& request, Answers& client);
  void barrier(const Request& request, Answers& client);
  // get, wait, multi_get.
  void wait_for_keys(const Request& request, Answers& client);

  // Answers, or hangs the waiter on its first missing key.
  void proceed(Waiter waiter);
  void answer_with_values(const Waiter& waiter);
  void key_was_set(std::string_view key);
  Status timed_out(const Waiter& waiter, Duration waited) const;

  const base::JobHash job_;
  const std::uint64_t epoch_;
  const Secret secret_;
  const std::size_t max_connections_;
  const std::size_t max_memory_;
  const Clock& clock_;
  KeyValues values_;
  Waiters waiters_;
  std::unordered_map<const Answers*, std::map<std::string, Buffer, std::less<>>> wills_;  // by key
  std::size_t connections_ = 0;
  std::size_t in_flight_ = 0;
};

}  // namespace lockstep::store
