// Connections over TCP, IPv4 and IPv6.
//
// Every connection opens with the handshake of base/handshake.h (Role::kControl) and then carries records:
// docs/wire/connection.md. What a stranger can cost is bounded in connections, bytes and time, and each limit
// is in TcpTransportOptions. Endpoints hold numeric addresses.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/store/tcp_options.h"
#include "lockstep/transport/introduction.h"
#include "lockstep/transport/transport.h"

namespace lockstep::transport::tcp {

struct TcpTransportOptions {
  // Behaviour.
  Identity identity = {};
  Protection protection = Protection::kSealed;
  // Whether an address that other hosts can reach may be bound for a job without a secret.
  store::OpenToAll open_to_all = store::OpenToAll::kRefuse;
  // Called on the loop when a listener has been unable to take in connections for a while: whoever connects
  // meanwhile waits for an answer that cannot come.
  std::function<void(const Status&)> cannot_accept = [](const Status&) {};
  // Performance: as choose_congestion_control() in congestion.h.
  std::string congestion_control = {};
  // Limits, per listener. Who connects has until the deadline of its call.
  std::size_t max_unproven = 64;
  std::optional<std::size_t> max_connections = {};  // 2 x world + 16
  Duration handshake_timeout = std::chrono::seconds(5);
};

class TcpTransport final : public Transport {
 public:
  static Result<std::unique_ptr<TcpTransport>> create(TcpTransportOptions options,
                                                      const Clock& clock = Clock::steady());
  ~TcpTransport() override;

  void connect(const Target& target, const Deadline& deadline, Connected done) override;
  // Binds exactly this address. kNoSecret if it would be open to everyone who reaches it.
  Result<std::unique_ptr<Listener>> listen(const base::Endpoint& bind) override;
  const Clock& clock() const override;
  Loop& loop() override;

 private:
  class Impl;
  explicit TcpTransport(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::transport::tcp
