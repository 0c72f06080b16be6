// A Pairing settles on one connection to a peer, whoever makes it.
//
// The connection that the lower rank makes wins. So the lower rank uses its own as soon as it has it, and the
// higher one uses what it accepts. A connection that the higher rank makes is used once the lower has said
// kHello on it, which it does unless it is making one itself: then it waits how that ends, and says kYield
// or, if it came to nothing, kHello.
// Thread safety: none; lives on the strand.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/transport/connection.h"
#include "lockstep/transport/messages/route.h"

namespace lockstep::transport::messages {

class Channel;

class Pairing {
 public:
  // Tells the channel, which owns it, of the connection or of the failure.
  Pairing(Channel& channel, Rank peer) : channel_(channel), peer_(peer) {}

  // Makes a connection unless there is one or one is on its way.
  void connect_on_strand();
  void accepted_on_strand(std::unique_ptr<Connection> connection);
  // No connection is wanted any more.
  void end_on_strand();

 private:
  enum class State : std::uint8_t {
    kIdle,
    kConnecting,
    kAwaitsHello,  // own_ is made; the lower rank has not said whether it is used
    kAwaitsPeer,   // the lower rank makes one
    kSettled,
  };

  void connected_on_strand(Result<std::unique_ptr<Connection>> connection);
  void await_hello_on_strand(std::unique_ptr<Connection> connection);
  void answered_on_strand(const Connection* asked, const Status& status);
  void settle_on_strand(std::unique_ptr<Connection> connection);
  void yield_on_strand(std::unique_ptr<Connection> connection);

  Channel& channel_;
  const Rank peer_;
  State state_ = State::kIdle;
  std::unique_ptr<Connection> own_;
  std::unique_ptr<Connection> parked_;  // the higher rank's, while this one makes its own
  Buffer answer_;
};

}  // namespace lockstep::transport::messages
