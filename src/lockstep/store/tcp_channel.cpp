#include "lockstep/store/tcp_channel.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/store/store_errors.h"

namespace lockstep::store {
namespace {

// Marks requests that nobody waits for.
constexpr std::uint64_t kPostedBit = 1ULL << 63;
constexpr Duration kLongestWithoutLeader = std::chrono::milliseconds(10);

bool waits(Op op) {
  return op == Op::kGet || op == Op::kWait || op == Op::kMultiGet || op == Op::kQueuePop ||
         op == Op::kBarrier;
}

}  // namespace

struct Channel::Call {
  enum class State : std::uint8_t { kWaiting, kDelivering, kDone };

  std::uint64_t id = 0;
  Op op = Op::kGet;
  const OnBody* on_body = nullptr;
  std::uint64_t posted_before = 0;
  State state = State::kWaiting;
  Status status = {};
  CondVar changed = {};
};

Channel::Channel(Connected connection, std::string server)
    : conduit_(std::move(connection.conduit)),
      server_(std::move(server)),
      writer_(connection.keys ? FrameKey(connection.keys->client_to_server) : FrameKey()),
      reader_(connection.keys ? FrameKey(connection.keys->server_to_client) : FrameKey(), kMaxMessageSize) {}

Status Channel::call(Request& request, const Deadline& guard, const OnBody& on_body) {
  if (conduit_.in_child()) return forked();
  const MutexLock lock(mutex_);
  LOCKSTEP_TRY(check_usable());
  request.id = next_id_++;
  Call call{.id = request.id, .op = request.op, .on_body = &on_body, .posted_before = posted_};
  calls_.push_back(&call);
  Status sent = send_request(request, guard);
  if (!sent.ok()) {
    if (call.state == Call::State::kWaiting) std::erase(calls_, &call);
    while (call.state == Call::State::kDelivering) call.changed.wait(mutex_);
    promote_another();
    return sent;
  }
  return await(call, guard);
}

Status Channel::post(Request& request, const Deadline& guard) {
  if (conduit_.in_child()) return forked();
  const std::size_t size = request_size(request);
  {
    const MutexLock lock(mutex_);
    if (posted_ - confirmed_ + size <= kMaxUnconfirmed) {
      LOCKSTEP_TRY(check_usable());
      request.id = next_id_++ | kPostedBit;
      request.answer = Answer::kOnError;
      posted_ += size;
      Status sent = send_request(request, guard);
      promote_another();
      return sent;
    }
  }
  request.answer = Answer::kAlways;
  return call(request, guard, [](ByteView) { return Status(); });
}

bool Channel::has_unconfirmed() {
  if (conduit_.in_child()) return false;
  const MutexLock lock(mutex_);
  return failure_.ok() && posted_ > confirmed_;
}

Status Channel::check_usable() {
  if (!failure_.ok()) return failure_;
  return std::exchange(refusal_, Status());
}

Status Channel::send_request(const Request& request, const Deadline& guard) {
  try {
    writer_.write(outbox_, [&](Buffer& out) { write_request(request, out); });
  } catch (const std::bad_alloc&) {
    return out_of_memory(cat("none is left to send ", op_name(request.op)));
  }
  return flush(request.op, guard);
}

bool Channel::send_some() {
  while (!outbox_.empty()) {
    const ssize_t count = conduit_.send(outbox_);
    if (count == static_cast<ssize_t>(outbox_.size())) {
      outbox_.clear();
    } else if (count > 0) {
      outbox_.erase(outbox_.begin(), outbox_.begin() + count);
    } else if (errno == EAGAIN) {
      return false;
    } else if (errno != EINTR) {
      fail(lost(std::strerror(errno)));
      return true;
    }
  }
  return true;
}

Status Channel::flush(Op op, const Deadline& guard) {
  while (failure_.ok() && !send_some()) {
    // What stays in the outbox is sent before the next request: a frame once begun must be finished.
    if (guard.expired()) return no_answer(op);
    if (!has_leader_) {
      lead(POLLIN | POLLOUT, guard);
      continue;
    }
    // Not for long at a time: the leader may leave, and a server that cannot send does not read.
    mutex_.unlock();
    pollfd descriptor{.fd = conduit_.sending(), .events = POLLOUT, .revents = 0};
    poll(&descriptor, 1, guard.at_most(kLongestWithoutLeader).poll_millis());
    mutex_.lock();
  }
  return failure_;
}

Status Channel::await(Call& call, const Deadline& guard) {
  while (call.state != Call::State::kDone) {
    if (call.state == Call::State::kDelivering) {
      call.changed.wait(mutex_);
    } else if (guard.expired()) {
      return give_up(call);
    } else if (has_leader_) {
      call.changed.wait_until(mutex_, guard);
    } else {
      lead(POLLIN, guard);
    }
  }
  promote_another();
  return call.status;
}

Status Channel::give_up(Call& call) {
  std::erase(calls_, &call);
  if (waits(call.op) && failure_.ok()) {
    const Request cancel{.id = next_id_++ | kPostedBit, .op = Op::kCancel, .target = call.id};
    writer_.write(outbox_, [&](Buffer& out) { write_request(cancel, out); });
    send_some();
  }
  promote_another();
  return no_answer(call.op);
}

void Channel::lead(short events, const Deadline& guard) {
  has_leader_ = true;
  mutex_.unlock();
  const Status received = receive(events, guard);
  mutex_.lock();
  has_leader_ = false;
  if (!received.ok()) fail(received);
}

// poll(2) first, although a receive could block by itself: a thread that sleeps in a receive of an AF_UNIX
// socket is woken, for nothing, each time the other side takes what it has sent.
Status Channel::receive(short events, const Deadline& guard) {
  std::array<pollfd, 2> descriptors = {pollfd{.fd = conduit_.receiving(), .events = POLLIN, .revents = 0},
                                       pollfd{.fd = conduit_.sending(), .events = POLLOUT, .revents = 0}};
  const nfds_t watched = (events & POLLOUT) != 0 ? 2 : 1;
  if (poll(descriptors.data(), watched, guard.poll_millis()) <= 0 || descriptors[0].revents == 0) return {};
  ByteSpan space;
  try {
    space = reader_.space();
  } catch (const std::bad_alloc&) {
    return out_of_memory(cat("none is left for an answer of TcpStore ", server_));
  }
  const ssize_t count = conduit_.receive(space);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  if (count < 0) return lost(std::strerror(errno));
  if (count == 0) return lost("its process has ended or has closed the connection");
  reader_.received(static_cast<std::size_t>(count));
  while (true) {
    auto message = reader_.next();
    if (!message.ok()) return message.status().with_prefix(cat("TcpStore ", server_, ": "));
    if (!message->has_value()) return {};
    Response response;
    const Status parsed = parse_response(**message, response);
    if (!parsed.ok()) {
      return Status(Code::kDisconnected, cat("TcpStore ", server_, ": ", parsed.message()), parsed.cause());
    }
    deliver(response);
  }
}

void Channel::deliver(const Response& response) {
  mutex_.lock();
  const auto found =
      std::find_if(calls_.begin(), calls_.end(), [&](const Call* c) { return c->id == response.id; });
  if (found == calls_.end()) {
    // Either a post that was refused, or a call whose caller has given up.
    if ((response.id & kPostedBit) != 0 && refusal_.ok()) {
      refusal_ = response.status.with_prefix(cat("TcpStore ", server_, ": an earlier write was refused: "));
    }
    mutex_.unlock();
    return;
  }
  Call& call = **found;
  *found = calls_.back();
  calls_.pop_back();
  call.state = Call::State::kDelivering;
  confirmed_ = std::max(confirmed_, call.posted_before);
  mutex_.unlock();
  Status status;
  try {
    status = response.status.ok() ? (*call.on_body)(response.body)
                                  : response.status.with_prefix(cat("TcpStore ", server_, ": "));
  } catch (const std::bad_alloc&) {
    status = out_of_memory(cat("none is left for the answer to ", op_name(call.op)));
  }
  mutex_.lock();
  call.status = std::move(status);
  call.state = Call::State::kDone;
  call.changed.notify_one();
  mutex_.unlock();
}

void Channel::promote_another() {
  if (!has_leader_ && !calls_.empty()) calls_.front()->changed.notify_one();
}

void Channel::fail(const Status& failure) {
  if (failure_.ok()) failure_ = failure;
  for (Call* call : calls_) {
    call->status = failure_;
    call->state = Call::State::kDone;
    call->changed.notify_one();
  }
  calls_.clear();
}

Status Channel::forked() const {
  return Status::invalid(
      cat("TcpStore ", server_,
          ": this process was forked after the connection was made, and the connection is the "
          "parent's. Connect again in the child."),
      {.failure = Failure::kForked, .host = server_});
}

Status Channel::lost(std::string_view how) const {
  return Status::disconnected(
      cat("TcpStore ", server_, ": the store is lost: ", how,
          ". Look for the end of the process that serves it; then connect to a new one."),
      {.failure = Failure::kStoreLost, .host = server_});
}

Status Channel::no_answer(Op op) const {
  return Status::timeout(cat("TcpStore ", server_, ": ", op_name(op),
                             " was not answered in time. The process that serves the store is stopped or "
                             "overloaded, or the network to it is cut."),
                         {.op = std::string(op_name(op)), .host = server_});
}

}  // namespace lockstep::store
