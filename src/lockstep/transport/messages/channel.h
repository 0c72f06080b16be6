// A Channel is the way to one other rank: its connection, and the messages that come and go on it.
//
// A neighbour has its connection from the start; to another host the Pairing makes it. The Outbox writes to
// it, the Inbox reads from it. The first failure of any of them is the channel's, and final. Thread safety:
// none; lives on the strand.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "lockstep/transport/messages/alarm.h"
#include "lockstep/transport/messages/departures.h"
#include "lockstep/transport/messages/inbox.h"
#include "lockstep/transport/messages/neighbour.h"
#include "lockstep/transport/messages/outbox.h"
#include "lockstep/transport/messages/pairing.h"
#include "lockstep/transport/messages/route.h"

namespace lockstep::transport::messages {

class Channel final : public Route, public std::enable_shared_from_this<Channel> {
 public:
  // The surroundings are shared with the messenger and its other routes.
  Channel(std::shared_ptr<Surroundings> surroundings, Rank peer);

  void send_on_strand(OperationPtr send) override;
  void deliver_on_strand(OperationPtr receive, Arrival arrival) override;
  void drop_on_strand(const Arrival& arrival) override;
  void withdraw_on_strand(const Why& why) override;
  void give_up_on_strand(const Status& why) override;
  void end_group_on_strand(std::uint64_t group) override { departures_.end_group_on_strand(group); }
  void end_on_strand(const Status& why) override;
  const std::optional<Status>& failure() const override { return failure_; }
  void accepted_on_strand(std::unique_ptr<Connection> connection);
  // Makes a connection unless there is one or one is on its way.
  void seek_on_strand();
  // For a peer on this host, first of all.
  void join_on_strand(std::unique_ptr<Neighbour> neighbour);
  // Of such a peer: moves what can be moved at once; true if there was something.
  bool move_on_strand();

  // For its parts.
  Surroundings& surroundings() { return *surroundings_; }
  Rank peer() const { return peer_; }
  Neighbour* neighbour() { return neighbour_; }
  Outbox& outbox() { return outbox_; }
  Inbox& inbox() { return inbox_; }
  Departures& departures() { return departures_; }
  void open_on_strand(std::unique_ptr<Connection> connection);
  // Ends everything, because of what a part has met.
  void lose_on_strand(const Status& why);
  void complete_on_strand(Operation& operation, const Status& status);
  // Takes back an operation whose bytes the connection holds: the peer gets a while to move them. What ends
  // its group meanwhile is why, whatever it was taken back for.
  void take_back_on_strand(Operation& operation, const Status& status);

 private:
  void watch_on_strand(base::TimePoint since);
  void look_for_stall_on_strand();
  // As the outbox's and the inbox's, of the older.
  base::TimePoint held_since() const;

  const std::shared_ptr<Surroundings> surroundings_;
  const Rank peer_;
  Pairing pairing_;
  Outbox outbox_;
  Inbox inbox_;
  Departures departures_;
  Alarm stall_;
  std::unique_ptr<Connection> connection_;
  Neighbour* neighbour_ = nullptr;  // the connection, also after it was retired; null for another host
  std::optional<Status> failure_;
};

}  // namespace lockstep::transport::messages
