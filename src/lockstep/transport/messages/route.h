// What the routes of a messenger share, and what a route is: the way to one rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/transport/connection.h"
#include "lockstep/transport/loop.h"
#include "lockstep/transport/messages/echoes.h"
#include "lockstep/transport/messages/mailbox.h"
#include "lockstep/transport/messages/messenger.h"
#include "lockstep/transport/messages/operation.h"
#include "lockstep/transport/messages/strand.h"
#include "lockstep/transport/transport.h"

namespace lockstep::transport::messages {

// Thread safety: none; lives on the strand.
struct Surroundings {
  Transport& transport;
  Loop& loop;
  const std::shared_ptr<Strand> strand;  // shared with what is posted to the loop
  const MessengerOptions options;
  std::unique_ptr<Echoes> echoes;
  Mailbox mailbox = {};
  // Closed, but kept until the messenger goes, which waits for their callbacks.
  std::vector<std::unique_ptr<Connection>> retired = {};

  // A callback of a connection, which comes on the loop.
  template <typename Then>
  auto on_strand(Then then) const {
    return [on = strand, then = std::move(then)](auto&& result) mutable {
      on->run([&] { then(std::forward<decltype(result)>(result)); });
    };
  }
  // What the peer of a message hears that is withdrawn now.
  Refusal reason_to_withdraw(std::uint64_t group) const {
    const Status* const ended = mailbox.ended(group);
    if (ended == nullptr) return Refusal::kWithdrawn;
    return ended->failure() == Failure::kClosed ? Refusal::kGroup : Refusal::kFailed;
  }
  // A peer is gone, from a group or altogether: receives from any rank may have nobody left.
  std::function<void()> peer_is_gone = [] {};
  // Something that a message needs cannot be had here.
  void tell_failed_on_strand(const Status& why, std::optional<Rank> peer) const {
    if (!options.failed) return;
    Received tell = options.failed;
    strand->call(tell, why, peer);
  }
  Deadline never() const { return {loop.clock(), base::TimePoint::max()}; }
  void retire_on_strand(std::unique_ptr<Connection>&& connection) {
    if (!connection) return;
    retired.push_back(nullptr);  // if there is no place for it, it stays where it is
    retired.back() = std::move(connection);
    retired.back()->close();
  }
  // Does nothing if it is gone.
  void close_retired_on_strand(const Connection* which) {
    for (const auto& connection : retired) {
      if (connection != nullptr && connection.get() == which) connection->close();
    }
  }
};

// Thread safety: none; lives on the strand.
// Implemented by Channel, for other processes, and Loopback, for this one.
class Route {
 public:
  virtual ~Route() = default;
  virtual void send_on_strand(OperationPtr send) = 0;
  // `receive` has taken `arrival`, which came by this route.
  virtual void deliver_on_strand(OperationPtr receive, Arrival arrival) = 0;
  // Nobody will take `arrival`, which came by this route: its group has ended.
  virtual void drop_on_strand(const Arrival& arrival) = 0;
  // Ends all operations that `why` says, but receives that have met no message: the mailbox has those.
  virtual void withdraw_on_strand(const Why& why) = 0;
  // The group has ended here, after its operations were withdrawn: who waits for that is told.
  virtual void end_group_on_strand(std::uint64_t group) = 0;
  // Its peer is lost: whatever it holds of a message that was withdrawn will not move.
  virtual void give_up_on_strand(const Status& why) = 0;
  // Ends everything.
  virtual void end_on_strand(const Status& why) = 0;
  // Why nothing comes or goes this way any more.
  virtual const std::optional<Status>& failure() const = 0;
};

}  // namespace lockstep::transport::messages
