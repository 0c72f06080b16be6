// Brings together the connections that have come to a Listener and the calls of accept().
//
// Thread safety: none; lives on the loop. Callbacks are posted.
#pragma once

#include <cstddef>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/transport/connection.h"
#include "lockstep/transport/loop.h"
#include "lockstep/transport/transport.h"

namespace lockstep::transport {

class AcceptQueue {
 public:
  AcceptQueue(Loop& loop, const Identity& identity, base::Endpoint endpoint);

  void accept_on_loop(base::TimePoint deadline, Connected done);
  // Dropped if the listener is closed.
  void offer_on_loop(std::unique_ptr<Connection> connection);
  void close_on_loop();

  // Connections that nobody has accepted yet.
  std::size_t unaccepted() const { return connections_.size(); }
  bool closed() const { return closed_; }

 private:
  struct Call {
    explicit Call(Loop& loop) : timer(loop) {}
    Timer timer;
    base::TimePoint started{};
    Connected done;
  };
  using Calls = std::list<Call>;

  void expire_on_loop(Calls::iterator call);
  void answer_on_loop(Calls::iterator call, Result<std::unique_ptr<Connection>> answer);
  Status closed_status() const;
  Cause cause(Failure failure) const;

  Loop& loop_;
  const std::string self_;
  const std::optional<Rank> rank_;
  const base::Endpoint endpoint_;
  Calls calls_;
  std::deque<std::unique_ptr<Connection>> connections_;
  bool closed_ = false;
};

}  // namespace lockstep::transport
