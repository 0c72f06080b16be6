#include "lockstep/transport/stream.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::transport {
namespace {

// What one connection moves before the others on the loop have their turn.
constexpr std::size_t kBytesPerTurn = 1U << 20;

}  // namespace

Stream::Stream(Loop& loop, Parties parties, std::shared_ptr<Wire> wire)
    : loop_(loop), parties_(std::move(parties)), wire_(std::move(wire)), timer_(loop) {}

void Stream::start_on_loop() {
  wire_->start_on_loop([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->pump_on_loop();
  });
}

void Stream::send_on_loop(ByteView bytes, base::TimePoint deadline, Done done) {
  // One kind of operation serves both directions; a send's bytes are only read.
  add_on_loop(Direction::kSend, {const_cast<std::byte*>(bytes.data()), bytes.size()}, deadline,
              std::move(done));
}

void Stream::recv_on_loop(ByteSpan bytes, base::TimePoint deadline, Done done) {
  add_on_loop(Direction::kRecv, bytes, deadline, std::move(done));
}

void Stream::add_on_loop(Direction direction, ByteSpan bytes, base::TimePoint deadline, Done done) {
  Queue& queue = direction == Direction::kSend ? sends_ : recvs_;
  queue.push_back({.data = bytes.data(),
                   .size = bytes.size(),
                   .started = loop_.clock().now(),
                   .deadline = deadline,
                   .done = std::move(done)});
  if (failure_) return complete_on_loop(queue);
  arm_timer_on_loop(deadline);
  // Operations that were posted together are moved together.
  if (std::exchange(pump_posted_, true)) return;
  loop_.post([self = shared_from_this()] {
    self->pump_posted_ = false;
    self->pump_on_loop();
  });
}

void Stream::close_on_loop() {
  if (failure_) return;
  end_on_loop(
      Status::aborted(cat(parties_.self_text, " closed its connection to ", parties_.peer.text(), '.'),
                      parties_.cause("close", Failure::kClosed)));
}

void Stream::pump_on_loop() {
  if (failure_) return;
  std::size_t to_recv = kBytesPerTurn;
  std::size_t to_send = kBytesPerTurn;
  pump_recvs_on_loop(to_recv);
  pump_sends_on_loop(to_send);
  if (failure_ || (to_recv > 0 && to_send > 0) || std::exchange(pump_posted_, true)) return;
  loop_.post([self = shared_from_this()] {
    self->pump_posted_ = false;
    self->pump_on_loop();
  });
}

void Stream::pump_recvs_on_loop(std::size_t& budget) {
  while (!failure_ && !recvs_.empty() && budget > 0) {
    Operation& op = recvs_.front();
    if (op.moved < op.size) {
      const std::size_t count = std::min(op.size - op.moved, budget);
      const auto read = wire_->read_on_loop({op.data + op.moved, count});
      if (!read.ok()) return fail_on_loop(Direction::kRecv, read.status());
      if (*read == 0) return;
      op.moved += *read;
      budget -= *read;
    }
    if (op.moved == op.size) complete_on_loop(recvs_);
  }
}

void Stream::pump_sends_on_loop(std::size_t& budget) {
  while (!failure_ && !sends_.empty() && budget > 0) {
    const std::size_t budget_before = budget;
    const std::uint64_t flushed_before = flushed_;
    bool full = false;
    while (taken_ < sends_.size() && budget > 0 && !full) {
      Operation& op = sends_[taken_];
      const std::size_t count = std::min(op.size - op.moved, budget);
      const auto written = wire_->write_on_loop({op.data + op.moved, count});
      if (!written.ok()) return fail_send_on_loop(written.status());
      op.moved += *written;
      budget -= *written;
      full = *written < count;
      if (op.moved < op.size) continue;
      op.mark = wire_->taken();
      ++taken_;
    }
    const auto flushed = wire_->flush_on_loop();
    if (!flushed.ok()) return fail_send_on_loop(flushed.status());
    flushed_ = *flushed;
    while (taken_ > 0 && sends_.front().mark <= flushed_) {
      --taken_;
      complete_on_loop(sends_);
    }
    // In both cases the wire calls when it has room.
    if (flushed_ < wire_->taken() || (full && budget == budget_before && flushed_ == flushed_before)) return;
  }
}

// The first operation of the queue has come to its end.
void Stream::complete_on_loop(Queue& queue) {
  loop_.post([done = std::move(queue.front().done), status = failure_.value_or(Status())] { done(status); });
  queue.pop_front();
}

// The timer is only moved to an earlier time: one that rings for nothing is cheaper than one that is set anew
// for every operation.
void Stream::arm_timer_on_loop(base::TimePoint at) {
  if (timer_.armed() && timer_.at() <= at) return;
  timer_.arm_on_loop(at, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->expire_on_loop();
  });
}

void Stream::expire_on_loop() {
  pump_on_loop();  // what has come in time counts
  const base::TimePoint now = loop_.clock().now();
  base::TimePoint next = base::TimePoint::max();
  for (const Direction direction : {Direction::kRecv, Direction::kSend}) {
    for (const Operation& op : direction == Direction::kSend ? sends_ : recvs_) {
      next = std::min(next, op.deadline);
      if (op.deadline > now) continue;
      return fail_on_loop(direction,
                          Status::timeout(cat("waited ", now - op.started, " until its deadline")));
    }
  }
  if (!failure_) arm_timer_on_loop(next);
}

// The peer's last words, which may still wait to be received, say more than a send that finds it gone.
void Stream::fail_send_on_loop(const Status& why) {
  std::size_t budget = kBytesPerTurn;
  pump_recvs_on_loop(budget);
  if (!failure_) fail_on_loop(Direction::kSend, why);
}

void Stream::fail_on_loop(Direction direction, const Status& why) {
  const bool sending = direction == Direction::kSend;
  const Queue& queue = sending ? sends_ : recvs_;
  const std::string_view op = sending ? "send" : "recv";
  const std::string doing = cat(op, " of ", Bytes(queue.front().size), sending ? " to" : " from");
  end_on_loop(parties_.blame(why, op, doing));
}

// The goodbye is also for a peer whom we give up on: it shall not take us for dead.
void Stream::end_on_loop(Status failure) {
  failure_ = std::move(failure);
  timer_.disarm_on_loop();
  wire_->close_on_loop();
  taken_ = 0;
  while (!recvs_.empty()) complete_on_loop(recvs_);
  while (!sends_.empty()) complete_on_loop(sends_);
}

StreamConnection::StreamConnection(std::shared_ptr<Stream> stream)
    : guest_(stream->loop()), stream_(std::move(stream)) {}

StreamConnection::~StreamConnection() {
  Loop& loop = stream_->loop();
  if (loop.in_forked_child()) {
    // What it holds is the parent's: the sockets, and the epoll set they are in.
    static_cast<void>(std::make_unique<std::shared_ptr<Stream>>(std::move(stream_)).release());
    return;
  }
  loop.run_and_drain([this] { stream_->close_on_loop(); });
}

bool StreamConnection::refused_in_child(std::string_view op, const Done& done) const {
  if (!stream_->loop().in_forked_child()) return false;
  const Parties& parties = stream_->parties();
  done(Status::invalid(cat(parties.self_text, ": the connection to ", parties.peer.text(),
                           " belongs to the parent of this forked process; make one of its own here."),
                       parties.cause(op, Failure::kForked)));
  return true;
}

void StreamConnection::send(ByteView bytes, const Deadline& deadline, Done done) {
  if (refused_in_child("send", done)) return;
  stream_->loop().post(
      [stream = stream_, bytes, at = stream_->loop().time_of(deadline), done = std::move(done)]() mutable {
        stream->send_on_loop(bytes, at, std::move(done));
      });
}

void StreamConnection::recv(ByteSpan bytes, const Deadline& deadline, Done done) {
  if (refused_in_child("recv", done)) return;
  stream_->loop().post(
      [stream = stream_, bytes, at = stream_->loop().time_of(deadline), done = std::move(done)]() mutable {
        stream->recv_on_loop(bytes, at, std::move(done));
      });
}

void StreamConnection::close() {
  if (stream_->loop().in_forked_child()) return;
  stream_->loop().post([stream = stream_] { stream->close_on_loop(); });
}

}  // namespace lockstep::transport
