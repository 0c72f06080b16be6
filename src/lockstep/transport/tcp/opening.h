// The way from a socket to a Connection: handshake (for the side that connects), then introductions.
//
// Thread safety: none; both live on the loop. The callback runs once, on the loop, maybe inside
// start_on_loop() or abort_on_loop(). Shared with the handlers that wait for the socket.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/handshake.h"
#include "lockstep/transport/connection.h"
#include "lockstep/transport/introduction.h"
#include "lockstep/transport/loop.h"
#include "lockstep/transport/tcp/socket.h"
#include "lockstep/transport/tcp/tcp_wire.h"
#include "lockstep/transport/transport.h"

namespace lockstep::transport::tcp {

// What the openings of one transport share. Outlives them.
struct Surroundings {
  Loop& loop;
  Lingering& lingering;
  const Identity& identity;
  const Protection protection;
  const Duration handshake_timeout;  // for who listens
  const std::string& congestion_control;
  const std::function<void(const Status&)>& cannot_accept;
};

// Errors are the ends of sentences; whoever is called says about whom.
using Opened = std::function<void(Result<std::unique_ptr<Connection>>)>;

// Exchanges introductions on a socket whose handshake is done.
class Meeting final : public std::enable_shared_from_this<Meeting> {
 public:
  // `host` names the other end, `expected` is the rank that it must have.
  Meeting(const Surroundings& surroundings, std::shared_ptr<TcpWire> wire, std::string host,
          std::optional<Rank> expected, Opened opened);

  void start_on_loop(base::TimePoint deadline);
  void abort_on_loop(const Status& why);

 private:
  void go_on_on_loop();

  const Surroundings& surroundings_;
  const std::shared_ptr<TcpWire> wire_;
  const std::string host_;
  const std::optional<Rank> expected_;
  Timer timer_;
  Opened opened_;  // empty once called
};

// Connects, proves who we are, and meets.
class Connector final : public std::enable_shared_from_this<Connector> {
 public:
  Connector(const Surroundings& surroundings, const Target& target, Opened opened);

  void start_on_loop(base::TimePoint deadline);
  void abort_on_loop(const Status& why);

 private:
  enum class Stage : std::uint8_t { kConnecting, kHello, kVerdict, kMeeting };

  void connected_on_loop();
  void go_on_on_loop();
  Status take_hello_on_loop();
  Status take_verdict_on_loop();
  Status send_now_on_loop(ByteView bytes);
  // Says `what` was missing when the deadline passes.
  void set_limit_on_loop(std::string what);

  const Surroundings& surroundings_;
  const Target target_;
  base::ClientHandshake handshake_;
  std::unique_ptr<Socket> socket_;
  std::shared_ptr<Meeting> meeting_;
  Timer timer_;
  base::TimePoint deadline_{};
  std::array<std::byte, base::kServerHelloSize> in_{};
  std::size_t count_ = 0;
  Stage stage_ = Stage::kConnecting;
  Opened opened_;  // empty once called
};

}  // namespace lockstep::transport::tcp
