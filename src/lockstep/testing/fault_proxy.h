// A TCP proxy that damages what passes through it: for tests on real sockets, below any protection.
//
// Listens on a port of its own and forwards each connection to `target`. Faults act on the bytes that the
// client sends (kToServer) or receives (kToClient), counted from the first byte of the handshake.
// Thread safety: any thread; runs one thread per connection.
// Destruction cuts every connection and waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <optional>
#include <thread>

#include "lockstep/base/bytes.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/net.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::testing {

class FaultProxy {
 public:
  enum class Direction : std::uint8_t { kToServer, kToClient };
  enum class Cut : std::uint8_t { kFin, kReset };
  struct Faults {
    Direction direction = Direction::kToServer;
    std::optional<std::uint64_t> cut_after = {};  // so many bytes pass, then both sides are cut off
    Cut cut = Cut::kFin;
    std::optional<std::uint64_t> flip_bit = {};  // this bit of the stream, counted from 0
    std::size_t slice = 0;                       // so many bytes at a time, each in a packet; 0: as they come
  };

  explicit FaultProxy(const base::Endpoint& target);
  ~FaultProxy();
  FaultProxy(const FaultProxy&) = delete;
  FaultProxy& operator=(const FaultProxy&) = delete;

  base::Endpoint endpoint() const { return endpoint_; }
  // For connections that are made from now on.
  void set(const Faults& faults);

 private:
  struct Connection {
    std::thread thread;
    std::atomic<bool> finished = false;
  };
  void accept_all();
  void forget_finished();
  // Until both sides have ended, a fault has, or the proxy stops.
  void forward(base::UniqueFd client, base::UniqueFd server, const Faults& faults) const;

  const base::Endpoint target_;
  base::UniqueFd listening_;
  base::Endpoint endpoint_;
  base::UniqueFd stop_;  // an eventfd; readable from the moment when all threads shall end
  base::Mutex mutex_;
  Faults faults_ LOCKSTEP_GUARDED_BY(mutex_);
  std::list<Connection> connections_;  // the accepting thread's, until it has ended
  std::thread accepting_;
};

}  // namespace lockstep::testing
