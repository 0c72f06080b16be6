// The listening side of TcpTransport: a bound socket, strangers who prove themselves, members who are let in.
#pragma once

#include <cstddef>
#include <memory>
#include <set>

#include "lockstep/base/handshake.h"
#include "lockstep/base/log.h"
#include "lockstep/base/net.h"
#include "lockstep/store/tcp_greeter.h"
#include "lockstep/store/tcp_listener.h"
#include "lockstep/transport/accept_queue.h"
#include "lockstep/transport/connection.h"
#include "lockstep/transport/tcp/opening.h"
#include "lockstep/transport/tcp/tcp_transport.h"

namespace lockstep::transport::tcp {

// The part that lives on the loop.
class Door final : public std::enable_shared_from_this<Door> {
 public:
  struct Limits {
    std::size_t unproven;
    std::size_t connections;
  };
  Door(const Surroundings& surroundings, const Limits& limits, const base::Endpoint& endpoint);

  void open_on_loop(UniqueFd socket);
  void close_on_loop();
  AcceptQueue& queue() { return queue_; }

 private:
  base::ServerHandshake::Decision decide_on_loop(const base::ClientClaim& claim) const;
  base::Verdict judge_proven_on_loop() const;
  void admit_on_loop(store::Guest guest);

  const Surroundings& surroundings_;
  const Limits limits_;
  const base::Endpoint endpoint_;
  const base::JobHash job_;
  AcceptQueue queue_;
  base::RateLimit log_limit_;
  std::unique_ptr<store::Greeter> greeter_;
  std::unique_ptr<store::Listener> listener_;
  std::set<std::shared_ptr<Meeting>> meetings_;
  // Counts connections by its owners: each holds a copy until its socket is closed.
  const std::shared_ptr<void> ticket_;
};

class TcpListener final : public Listener {
 public:
  TcpListener(Loop& loop, const Identity& identity, std::shared_ptr<Door> door,
              const base::Endpoint& endpoint);
  ~TcpListener() override;

  void accept(const Deadline& deadline, Connected done) override;
  void close() override;
  const base::Endpoint& endpoint() const override { return endpoint_; }

 private:
  Loop& loop_;
  const Loop::Guest guest_;
  const Identity& identity_;
  std::shared_ptr<Door> door_;  // shared with what is posted to the loop
  const base::Endpoint endpoint_;
};

}  // namespace lockstep::transport::tcp
