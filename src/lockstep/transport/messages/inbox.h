// The Inbox of a channel: reads the peer's frames, and brings messages to their receives.
//
// A payload is read straight into the receive's bytes, but for an eager message that came before its receive:
// that one is kept, within the budget.
// Thread safety: none; lives on the loop.
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

  void open_on_loop(Connection& connection);
  void deliver_on_loop(OperationPtr receive, Arrival arrival);
  void drop_on_loop(const Arrival& arrival);
  // What the peer may be told to be free again; it counts as told.
  std::uint32_t take_credit();

  void withdraw_on_loop(const Why& why);
  // As Outbox::held_since(), of a receive.
  base::TimePoint held_since() const;

 private:
  // A message that comes in pieces.
  struct Incoming {
    OperationPtr receive;    // null once it was withdrawn: the rest is thrown away
    std::uint64_t left = 0;  // bytes that have not come
  };
  using Then = std::function<void()>;

  void read_frame_on_loop();
  void read_on_loop(ByteSpan bytes, Then then);
  void throw_away_on_loop(std::uint64_t count, Then then);
  // Every kind ends with reading the next frame, or with an error.
  Status handle_on_loop(const Frame& frame);
  Status eager_on_loop(const Frame& frame);
  void keep_on_loop(const Frame& frame, Buffer payload);
  Status asked_on_loop(const Frame& frame);
  Status data_on_loop(const Frame& frame);
  void piece_read_on_loop(const Frame& frame);
  void abandoned_on_loop(const Frame& frame);

  void fill_on_loop(Operation& receive, ByteView payload, const Frame& frame);
  void start_on_loop(OperationPtr receive, const Frame& ask);
  void refuse_size_on_loop(Operation& receive, const Frame& frame);
  void refuse_on_loop(const Frame& frame, Refusal refusal, std::uint64_t room = 0);
  void free_on_loop(std::size_t cost);

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
