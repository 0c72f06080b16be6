// The Outbox of a channel: what waits to be sent to the peer, and how it is sent.
//
// Frames go in turns. A turn is one send of frames, with the payloads of eager messages among them (copied,
// so that they go in one piece), and at most one piece of one large message, from where it lies. A large
// message that lies in shared memory is only offered to a neighbour, one at a time. Answers go first, then
// new messages, then the pieces: a small message overtakes a large one that is on its way. Thread safety:
// none; lives on the strand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "lockstep/base/log.h"
#include "lockstep/transport/connection.h"
#include "lockstep/transport/messages/frame.h"
#include "lockstep/transport/messages/operation.h"

namespace lockstep::transport::messages {

class Channel;

class Outbox {
 public:
  // Belongs to the channel, and tells it of failures.
  explicit Outbox(Channel& channel);

  void open_on_strand(Connection& connection);
  // Nothing is sent any more.
  void close_on_strand() { connection_ = nullptr; }

  void send_on_strand(OperationPtr send);
  void say_on_strand(const Frame& frame);

  // What the peer says. An error means that it does not follow the grammar.
  Status credited_on_strand(std::uint32_t credit);
  Status go_on_strand(const Frame& go);
  Status refused_on_strand(const Frame& refusal);
  Status taken_on_strand(const Frame& taken);

  void withdraw_on_strand(const Why& why);
  // Since when the connection has held bytes of a send that was withdrawn; TimePoint::max() if it holds none.
  base::TimePoint held_since() const;

 private:
  using Sends = std::deque<OperationPtr>;

  void pump_soon_on_strand();
  void pump_on_strand();
  // Puts the message into this turn; false if it has to wait.
  bool announce_on_strand(const OperationPtr& send);
  ByteView next_piece_on_strand();
  // True if the peer, a neighbour, gets it where it lies.
  bool offer_on_strand(const OperationPtr& send);
  void append(Frame frame);
  void turn_sent_on_strand(const Status& status);
  void piece_sent_on_strand(std::size_t size, const Status& status);
  void abandon_on_strand(const Operation& send);
  void withdraw_from(Sends& sends, const Why& why);

  Channel& channel_;
  Connection* connection_ = nullptr;  // null before it is open and after it is closed
  std::vector<Frame> answers_;
  Sends messages_;                               // not announced
  std::map<std::uint64_t, OperationPtr> asked_;  // announced, waiting for kGo
  Sends moving_;                                 // between two pieces
  OperationPtr offered_;                         // whose payload the peer copies from where it lies
  OperationPtr piece_of_;                        // the one whose piece is in this turn
  Sends eager_;                                  // those in this turn
  Buffer turn_;                                  // the frames of this turn
  int sending_ = 0;                              // sends of this turn that are not done
  bool pump_posted_ = false;
  std::uint64_t last_id_ = 0;
  std::size_t eager_out_ = 0;      // of the budget, used
  base::RateLimit late_refusals_;  // of eager messages that were done: what is said of them
};

}  // namespace lockstep::transport::messages
