// What the routes of a messenger share, and what a route is: the way to one rank.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/transport/connection.h"
#include "lockstep/transport/loop.h"
#include "lockstep/transport/messages/echoes.h"
#include "lockstep/transport/messages/mailbox.h"
#include "lockstep/transport/messages/messenger.h"
#include "lockstep/transport/messages/operation.h"
#include "lockstep/transport/transport.h"

namespace lockstep::transport::messages {

// Thread safety: none; lives on the loop.
struct Surroundings {
  Transport& transport;
  Loop& loop;
  const MessengerOptions options;
  std::unique_ptr<Echoes> echoes;
  Mailbox mailbox = {};
  // Closed, but kept until the messenger goes, which waits for their callbacks.
  std::vector<std::unique_ptr<Connection>> retired = {};

  Deadline never() const { return {loop.clock(), base::TimePoint::max()}; }
  void retire_on_loop(std::unique_ptr<Connection> connection) {
    if (!connection) return;
    connection->close();
    retired.push_back(std::move(connection));
  }
  // Does nothing if it is gone.
  void close_retired_on_loop(const Connection* which) {
    for (const auto& connection : retired) {
      if (connection.get() == which) connection->close();
    }
  }
};

// Thread safety: none; lives on the loop.
// Implemented by Channel, for other processes, and Loopback, for this one.
class Route {
 public:
  virtual ~Route() = default;
  virtual void send_on_loop(OperationPtr send) = 0;
  // `receive` has taken `arrival`, which came by this route.
  virtual void deliver_on_loop(OperationPtr receive, Arrival arrival) = 0;
  // Nobody will take `arrival`, which came by this route: its group has ended.
  virtual void drop_on_loop(const Arrival& arrival) = 0;
  // Ends all operations that `why` says, but receives that have met no message: the mailbox has those.
  virtual void withdraw_on_loop(const Why& why) = 0;
  // Ends everything.
  virtual void end_on_loop(const Status& why) = 0;
  // Why nothing comes or goes this way any more.
  virtual const std::optional<Status>& failure() const = 0;
};

}  // namespace lockstep::transport::messages
