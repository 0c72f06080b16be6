// One connection with faults; see faulty_transport.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>

#include "lockstep/transport/connection.h"
#include "lockstep/transport/faulty/faulty_transport.h"
#include "lockstep/transport/loop.h"

namespace lockstep::transport::faulty {

// The part that lives on the faulty transport's loop. Passes operations on piece by piece, one at a time in
// each direction.
class FaultyStream final : public std::enable_shared_from_this<FaultyStream> {
 public:
  FaultyStream(Loop& loop, std::unique_ptr<Connection> inner, const Faults& faults);

  enum class Direction : bool { kSend, kRecv };
  // A send's bytes are only read.
  void add_on_loop(Direction direction, ByteSpan bytes, base::TimePoint deadline, Done done);
  void close_on_loop();
  // Closes, and lets go of the inner connection once it has let go of all bytes.
  void end_on_loop();

  Loop& loop() const { return loop_; }
  const Peer& peer() const { return peer_; }

 private:
  struct Operation {
    ByteSpan bytes;
    std::size_t moved = 0;
    base::TimePoint deadline{};
    Done done;
  };
  struct Lane {
    explicit Lane(Loop& loop) : timer(loop) {}
    Timer timer;
    std::deque<Operation> operations;
    std::uint64_t offset = 0;  // bytes moved by all operations so far
    bool inner_busy = false;
    bool delayed = false;
  };
  Lane& lane(Direction direction) { return direction == Direction::kSend ? sends_ : recvs_; }

  void go_on_on_loop(Direction direction);
  void pass_on_on_loop(Direction direction);
  void passed_on_loop(Direction direction, std::size_t count, const Status& status);
  // The bytes of a piece, with a bit flipped if it is due there.
  ByteView send_bytes(ByteView piece);
  void complete_on_loop(Lane& lane);
  void fail_on_loop(const Status& failure);
  void fail_lane_on_loop(Lane& lane);

  Loop& loop_;
  std::unique_ptr<Connection> inner_;
  const Peer peer_;
  const Faults faults_;
  std::mt19937_64 random_;
  Lane sends_;
  Lane recvs_;
  Buffer damaged_;  // a piece with its flipped bit, while it is sent
  std::optional<Status> failure_;
};

class FaultyConnection final : public Connection {
 public:
  explicit FaultyConnection(std::shared_ptr<FaultyStream> stream);
  ~FaultyConnection() override;

  void send(ByteView bytes, const Deadline& deadline, Done done) override;
  void recv(ByteSpan bytes, const Deadline& deadline, Done done) override;
  void close() override;
  const Peer& peer() const override { return stream_->peer(); }

 private:
  void add(FaultyStream::Direction direction, ByteSpan bytes, const Deadline& deadline, Done done);

  const Loop::Guest guest_;
  std::shared_ptr<FaultyStream> stream_;  // shared with what is posted to the loop
};

}  // namespace lockstep::transport::faulty
