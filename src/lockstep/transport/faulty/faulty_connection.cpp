#include "lockstep/transport/faulty/faulty_connection.h"

#include <algorithm>
#include <new>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::transport::faulty {

FaultyStream::FaultyStream(Loop& loop, std::unique_ptr<Connection> inner, const Faults& faults)
    : loop_(loop),
      inner_(std::move(inner)),
      peer_(inner_->peer()),
      faults_(faults),
      random_(faults.seed),
      sends_(loop),
      recvs_(loop) {}

void FaultyStream::add_on_loop(Direction direction, ByteSpan bytes, base::TimePoint deadline, Done done) {
  Lane& own = lane(direction);
  own.operations.push_back({.bytes = bytes, .deadline = deadline, .done = std::move(done)});
  if (failure_) return fail_lane_on_loop(own);
  go_on_on_loop(direction);
}

// Starts the next piece of the first operation, unless one is under way.
void FaultyStream::go_on_on_loop(Direction direction) {
  Lane& own = lane(direction);
  if (failure_ || own.inner_busy || own.delayed || own.operations.empty()) return;
  if (faults_.max_delay == Duration::zero()) return pass_on_on_loop(direction);
  own.delayed = true;
  const auto delay =
      Duration(std::uniform_int_distribution<Duration::rep>(0, faults_.max_delay.count())(random_));
  const base::TimePoint at = std::min(loop_.clock().now() + delay, own.operations.front().deadline);
  own.timer.arm_on_loop(at, [weak = weak_from_this(), direction] {
    const auto self = weak.lock();
    if (!self) return;
    self->lane(direction).delayed = false;
    self->pass_on_on_loop(direction);
  });
}

void FaultyStream::pass_on_on_loop(Direction direction) {
  Lane& own = lane(direction);
  const Operation& op = own.operations.front();
  const std::size_t rest = op.bytes.size() - op.moved;
  std::size_t count = faults_.pieces == Pieces::kOneByte ? std::min<std::size_t>(rest, 1) : rest;
  if (direction == Direction::kSend && faults_.cut_after) {
    const std::uint64_t left = *faults_.cut_after - own.offset;
    if (rest > 0 && left == 0) {
      return fail_on_loop(Status::disconnected(
          cat("The connection to ", peer_.text(), " was cut after ", own.offset,
              " bytes, as its faults say."),
          {.failure = Failure::kPeerUnreachable, .peer = peer_.rank, .op = "send", .host = peer_.host}));
    }
    count = std::min<std::uint64_t>(count, left);
  }
  own.inner_busy = true;
  const ByteSpan piece = op.bytes.subspan(op.moved, count);
  const Deadline deadline(loop_.clock(), op.deadline);
  // Posted in any case: the inner connection calls on a loop of its own.
  Done done = [self = shared_from_this(), direction, count](const Status& status) {
    self->loop_.post([self, direction, count, status] { self->passed_on_loop(direction, count, status); });
  };
  if (direction == Direction::kSend) return inner_->send(send_bytes(piece), deadline, std::move(done));
  inner_->recv(piece, deadline, std::move(done));
}

ByteView FaultyStream::send_bytes(ByteView piece) {
  if (!faults_.flip_after || *faults_.flip_after < sends_.offset) return piece;
  const std::uint64_t place = *faults_.flip_after - sends_.offset;
  if (place >= piece.size()) return piece;
  damaged_.assign(piece.begin(), piece.end());
  damaged_[place] ^= static_cast<std::byte>(1U << (random_() % 8));
  return damaged_;
}

void FaultyStream::passed_on_loop(Direction direction, std::size_t count, const Status& status) {
  Lane& own = lane(direction);
  own.inner_busy = false;
  if (failure_) return fail_lane_on_loop(own);
  if (!status.ok()) return fail_on_loop(status);
  Operation& op = own.operations.front();
  op.moved += count;
  own.offset += count;
  if (op.moved == op.bytes.size()) complete_on_loop(own);
  go_on_on_loop(direction);
}

void FaultyStream::complete_on_loop(Lane& lane) {
  loop_.post([done = std::move(lane.operations.front().done), status = failure_.value_or(Status())] {
    done(status);
  });
  lane.operations.pop_front();
}

void FaultyStream::close_on_loop() {
  if (failure_) return;
  fail_on_loop(
      Status::aborted(cat("The connection to ", peer_.text(), " was closed by this side."),
                      {.failure = Failure::kClosed, .peer = peer_.rank, .op = "close", .host = peer_.host}));
}

void FaultyStream::end_on_loop() {
  close_on_loop();
  inner_.reset();
}

void FaultyStream::fail_on_loop(const Status& failure) {
  failure_ = failure;
  inner_->close();
  for (Lane* lane : {&recvs_, &sends_}) {
    lane->timer.disarm_on_loop();
    fail_lane_on_loop(*lane);
  }
}

// Not before the inner connection has let go of the bytes.
void FaultyStream::fail_lane_on_loop(Lane& lane) {
  if (lane.inner_busy) return;
  while (!lane.operations.empty()) complete_on_loop(lane);
}

FaultyConnection::FaultyConnection(std::shared_ptr<FaultyStream> stream)
    : guest_(stream->loop()), stream_(std::move(stream)) {}

FaultyConnection::~FaultyConnection() {
  Loop& loop = stream_->loop();
  if (loop.in_forked_child()) {
    // Its timers are the loop's, whose locks may be held by a thread that is not in this process.
    static_cast<void>(new (std::nothrow) std::shared_ptr<FaultyStream>(std::move(stream_)));
    return;
  }
  loop.run_and_drain([this] { stream_->end_on_loop(); });
  // What the inner connection's callbacks posted has now run, but not what that posted.
  if (!loop.is_this_thread()) loop.run_and_drain([] {});
}

void FaultyConnection::add(FaultyStream::Direction direction, ByteSpan bytes, const Deadline& deadline,
                           Done done) {
  if (stream_->loop().in_forked_child()) {
    return done(
        Status::invalid(cat("The connection to ", peer().text(), " belongs to the parent of this process."),
                        {.failure = Failure::kForked, .peer = peer().rank}));
  }
  stream_->loop().post(
      [stream = stream_, direction, bytes, at = stream_->loop().time_of(deadline),
       done = std::move(done)]() mutable { stream->add_on_loop(direction, bytes, at, std::move(done)); });
}

void FaultyConnection::send(ByteView bytes, const Deadline& deadline, Done done) {
  add(FaultyStream::Direction::kSend, {const_cast<std::byte*>(bytes.data()), bytes.size()}, deadline,
      std::move(done));
}

void FaultyConnection::recv(ByteSpan bytes, const Deadline& deadline, Done done) {
  add(FaultyStream::Direction::kRecv, bytes, deadline, std::move(done));
}

void FaultyConnection::close() {
  if (stream_->loop().in_forked_child()) return;
  stream_->loop().post([stream = stream_] { stream->close_on_loop(); });
}

}  // namespace lockstep::transport::faulty
