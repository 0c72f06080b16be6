// The Inbox of a channel: reads the peer's frames, and brings messages to their receives.
//
// A payload is read straight into the receive's bytes, or copied from where a neighbour has offered it, but
// for an eager message that came before its receive: that one is kept, within the budget.
// Thread safety: none; lives on the strand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>

#include "lockstep/transport/connection.h"
#include "lockstep/transport/messages/frame.h"
#include "lockstep/transport/messages/mailbox.h"
#include "lockstep/transport/messages/operation.h"

namespace lockstep::transport::messages {

class Channel;

class Inbox {
 public:
  // Belongs to the channel, and tells it of failures.
  explicit Inbox(Channel& channel) : channel_(channel) {}

  void open_on_strand(Connection& connection);
  void deliver_on_strand(OperationPtr receive, Arrival arrival);
  void drop_on_strand(const Arrival& arrival);
  // Copies a piece of each message that was offered. True if there was one.
  bool copy_on_strand();
  // What the peer may be told to be free again; it counts as told.
  std::uint32_t take_credit();

  void withdraw_on_strand(const Why& why);
  // As Outbox::held_since(), of a receive.
  base::TimePoint held_since() const;

 private:
  // A message that comes in pieces.
  struct Incoming {
    OperationPtr receive;                // null once it was withdrawn: the rest is thrown away
    std::uint64_t left = 0;              // bytes that have not come
    const std::byte* offered = nullptr;  // where all of them lie in the peer's heap
  };
  using Then = std::function<void()>;

  void read_frame_on_strand();
  void read_on_strand(ByteSpan bytes, Then then);
  void throw_away_on_strand(std::uint64_t count, Then then);
  // Every kind ends with reading the next frame, or with an error.
  Status handle_on_strand(const Frame& frame);
  Status eager_on_strand(const Frame& frame);
  void keep_on_strand(const Frame& frame, Buffer payload);
  Status asked_on_strand(const Frame& frame);
  Status data_on_strand(const Frame& frame);
  void piece_read_on_strand(const Frame& frame);
  Status offered_on_strand(const Frame& frame);
  void copied_on_strand(std::uint64_t id, Operation& receive);
  void abandoned_on_strand(const Frame& frame);
  void withdrawn_on_strand(Operation& receive, Refusal why);

  void fill_on_strand(Operation& receive, ByteView payload, const Frame& frame);
  void start_on_strand(OperationPtr receive, const Frame& ask);
  void refuse_size_on_strand(Operation& receive, const Frame& frame);
  void refuse_on_strand(const Frame& frame, Refusal refusal, std::uint64_t room = 0);
  void free_on_strand(std::size_t cost);

  Channel& channel_;
  Connection* connection_ = nullptr;
  Buffer frame_;
  OperationPtr reading_;  // the receive whose bytes the connection holds
  Buffer waste_;
  std::map<std::uint64_t, Incoming> incoming_;
  std::uint64_t last_id_ = 0;  // that the peer has announced
  std::size_t kept_ = 0;       // of the budget, used
  std::size_t freed_ = 0;      // and not told yet
  std::size_t asks_ = 0;       // in the mailbox
};

}  // namespace lockstep::transport::messages
