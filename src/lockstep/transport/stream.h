// What every Connection over a Wire shares: the queues of operations, their deadlines, the first failure.
//
// A Stream is the part that lives on the loop; a StreamConnection is the handle that its user owns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string_view>

#include "lockstep/transport/connection.h"
#include "lockstep/transport/loop.h"
#include "lockstep/transport/parties.h"
#include "lockstep/transport/wire.h"

namespace lockstep::transport {

// Thread safety: none; lives on the loop. Callbacks are posted, so that none runs inside a method of this.
class Stream final : public std::enable_shared_from_this<Stream> {
 public:
  Stream(Loop& loop, Parties parties, std::shared_ptr<Wire> wire);

  void start_on_loop();
  void send_on_loop(ByteView bytes, base::TimePoint deadline, Done done);
  void recv_on_loop(ByteSpan bytes, base::TimePoint deadline, Done done);
  void close_on_loop();

  Loop& loop() const { return loop_; }
  const Parties& parties() const { return parties_; }

 private:
  struct Operation {
    std::byte* data = nullptr;  // read only in a send
    std::size_t size = 0;
    base::TimePoint started{};
    base::TimePoint deadline{};
    Done done;
    std::size_t moved = 0;
    std::uint64_t mark = 0;  // of a send that the wire has taken whole: how far it must have flushed
  };
  using Queue = std::deque<Operation>;
  enum class Direction : bool { kSend, kRecv };

  void add_on_loop(Direction direction, ByteSpan bytes, base::TimePoint deadline, Done done);
  void pump_on_loop();
  void pump_sends_on_loop(std::size_t& budget);
  void pump_recvs_on_loop(std::size_t& budget);
  void complete_on_loop(Queue& queue);
  void arm_timer_on_loop(base::TimePoint at);
  void expire_on_loop();
  void fail_on_loop(Direction direction, const Status& why);
  void fail_send_on_loop(const Status& why);
  void end_on_loop(Status failure);

  Loop& loop_;
  const Parties parties_;
  const std::shared_ptr<Wire> wire_;  // shared with the handlers that wait for it
  Timer timer_;
  Queue sends_;
  Queue recvs_;
  std::size_t taken_ = 0;      // sends at the front of the queue that the wire has taken whole
  std::uint64_t flushed_ = 0;  // as the wire said last
  bool pump_posted_ = false;
  std::optional<Status> failure_;
};

class StreamConnection final : public Connection {
 public:
  explicit StreamConnection(std::shared_ptr<Stream> stream);
  ~StreamConnection() override;

  void send(ByteView bytes, const Deadline& deadline, Done done) override;
  void recv(ByteSpan bytes, const Deadline& deadline, Done done) override;
  void close() override;
  const Peer& peer() const override { return stream_->parties().peer; }

 private:
  // True in a forked child, where `done` was answered.
  bool refused_in_child(std::string_view op, const Done& done) const;

  Loop::Guest guest_;
  std::shared_ptr<Stream> stream_;  // shared with what is posted to the loop
};

}  // namespace lockstep::transport
