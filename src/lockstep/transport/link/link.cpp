#include "lockstep/transport/link/link.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/status_bytes.h"
#include "lockstep/base/text.h"
#include "lockstep/transport/lost.h"

namespace lockstep::transport::link {
namespace {

Status damaged(std::string_view what) {
  return Status::disconnected(cat("a frame arrived damaged: ", what), {.failure = Failure::kCorruptFrame});
}

// Up to three pieces of memory that follow each other in a stream, of which `skip` bytes are dealt with.
class Pieces {
 public:
  explicit Pieces(std::size_t skip) : skip_(skip) {}
  void add(const void* data, std::size_t size) {
    const std::size_t gone = std::min(skip_, size);
    skip_ -= gone;
    if (gone == size) return;
    pieces_[count_++] = {.iov_base = static_cast<std::byte*>(const_cast<void*>(data)) + gone,
                         .iov_len = size - gone};
  }
  msghdr message() {
    msghdr out{};
    out.msg_iov = pieces_;
    out.msg_iovlen = count_;
    return out;
  }

 private:
  iovec pieces_[3]{};
  std::size_t count_ = 0;
  std::size_t skip_;
};

}  // namespace

Link::Link(UniqueFd socket, const std::optional<LinkKeys>& keys, SocketCalls& calls)
    : socket_(std::move(socket)), calls_(calls) {
  fork_guard_.emplace(socket_.get());
  if (!keys) return;
  sealer_.emplace(keys->send);
  opener_.emplace(keys->recv);
}

Link::~Link() {
  if (!fork_guard_->in_child()) {
    // Closed with unread bytes the socket would reset the connection, and the peer might not read our last
    // word.
    std::array<std::byte, 4096> rest;
    while (::recv(socket_.get(), rest.data(), rest.size(), MSG_DONTWAIT) > 0) {
    }
  }
  fork_guard_.reset();  // before the socket's number is free
}

void Link::send(const Stamp& stamp, std::uint32_t part, ByteView bytes) {
  out_.push_back({.kind = FrameKind::kData, .stamp = stamp, .part = part, .rest = bytes});
}

void Link::recv(const Stamp& stamp, std::uint32_t part, ByteSpan bytes) {
  in_.push_back({.stamp = stamp, .part = part, .rest = bytes, .size = bytes.size()});
}

short Link::events() const {
  return static_cast<short>((out_.empty() && !sending_ ? 0 : POLLOUT) | (in_.empty() ? 0 : POLLIN));
}

void Link::make_frame(Frame frame, ByteView payload) {
  frame.size = static_cast<std::uint32_t>(payload.size());
  frame.payload_crc = sealer_ ? 0 : base::crc32c(payload);
  out_header_ = write_header(frame);
  out_payload_ = payload;
  out_sent_ = 0;
  sending_ = true;
  if (!sealer_) return;
  sealed_.resize(payload.size() + base::kSealTagSize);
  if (!payload.empty()) std::memcpy(sealed_.data(), payload.data(), payload.size());
  sealer_->seal(out_header_, ByteSpan(sealed_).first(payload.size()),
                ByteSpan(sealed_).last<base::kSealTagSize>());
  out_payload_ = sealed_;
}

ssize_t Link::send_rest() {
  Pieces pieces(out_sent_);
  pieces.add(out_header_.data(), kHeaderSize);
  pieces.add(out_payload_.data(), out_payload_.size());
  const msghdr message = pieces.message();
  const ssize_t sent = calls_.send(socket_.get(), message);
  if (sent > 0) out_sent_ += static_cast<std::size_t>(sent);
  return sent;
}

Result<bool> Link::progress_out() {
  bool moved = false;
  while (true) {
    if (!sending_) {
      if (out_.empty()) return moved;
      Outgoing& message = out_.front();
      const ByteView chunk = message.rest.first(std::min(message.rest.size(), kMaxPayload));
      message.rest = message.rest.subspan(chunk.size());
      make_frame(
          {.kind = message.kind, .more = !message.rest.empty(), .part = message.part, .stamp = message.stamp},
          chunk);
    }
    if (send_rest() < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return moved;
      return connection_lost(errno);
    }
    moved = true;
    if (!frame_sent()) return moved;
    sending_ = false;
    if (!out_.front().rest.empty()) continue;
    if (out_.front().kind == FrameKind::kData) ++sends_done_;
    out_.pop_front();
  }
}

ByteSpan Link::expected_payload() {
  return in_.front().rest.first(std::min(in_.front().rest.size(), kMaxPayload));
}

// Reads no further than the frame that is expected: whatever else comes ends the link anyway, or is shorter.
Result<bool> Link::progress_in() {
  bool moved = false;
  while (!in_.empty()) {
    // The header first: a frame that is shorter than the expected one would be waited for in vain.
    if (in_received_ >= kHeaderSize) {
      LOCKSTEP_ASSIGN(const bool whole, take_received());
      if (whole) continue;
    }
    const ByteSpan expected = expected_payload();
    Pieces pieces(in_received_);
    pieces.add(in_header_.data(), kHeaderSize);
    pieces.add(expected.data(), expected.size());
    pieces.add(in_tag_.data(), tag_size());
    msghdr message = pieces.message();
    const ssize_t received = calls_.recv(socket_.get(), message);
    if (received == 0) return connection_lost(0);
    if (received < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return moved;
      return connection_lost(errno);
    }
    moved = true;
    in_received_ += static_cast<std::size_t>(received);
  }
  return moved;
}

Result<bool> Link::take_received() {
  LOCKSTEP_ASSIGN(const Frame frame, parse_header(in_header_));
  const Incoming& front = in_.front();
  const std::size_t expected = expected_payload().size();
  if (frame.kind == FrameKind::kWaiting) {
    if (in_received_ < kHeaderSize + tag_size()) return false;
    LOCKSTEP_TRY(take_waiting(frame));
    return true;
  }
  if (frame.kind != FrameKind::kData) return take_last_words(frame, expected);
  const bool more = front.rest.size() > expected;
  if (frame.stamp != front.stamp || frame.part != front.part || frame.size != expected ||
      frame.more != more) {
    mismatch_ = {.kind = frame.kind,
                 .expected = front.stamp,
                 .received = frame.stamp,
                 .expected_size = Bytes{front.size},
                 .received_size = Bytes{front.size - front.rest.size() + frame.size}};
    return Status::disconnected("the ranks are in different operations", {.failure = Failure::kDesync});
  }
  if (in_received_ < kHeaderSize + expected + tag_size()) return false;
  LOCKSTEP_TRY(take_frame());
  return true;
}

// What came behind it was read as if it were the expected payload: it is the beginning of the next frame.
Status Link::take_waiting(const Frame& frame) {
  const ByteSpan payload = expected_payload();
  Buffer behind(in_received_ - kHeaderSize);
  const std::size_t in_place = std::min(behind.size(), payload.size());
  if (in_place > 0) std::memcpy(behind.data(), payload.data(), in_place);
  if (behind.size() > in_place)
    std::memcpy(behind.data() + in_place, in_tag_.data(), behind.size() - in_place);
  if (opener_) {
    const Status opened = opener_->open(in_header_, {}, ByteView(behind).first<base::kSealTagSize>());
    if (!opened.ok()) return damaged(opened.message());
  }
  const ByteView next = ByteView(behind).subspan(tag_size());
  const std::size_t of_header = std::min(next.size(), kHeaderSize);
  if (of_header > 0) std::memcpy(in_header_.data(), next.data(), of_header);
  const ByteView rest = next.subspan(of_header);
  if (!rest.empty()) std::memcpy(payload.data(), rest.data(), rest.size());
  in_received_ = next.size();
  peer_waits_in_ = frame.stamp;
  return {};
}

// The expected frame is complete.
Status Link::take_frame() {
  Incoming& front = in_.front();
  const ByteSpan payload = expected_payload();
  in_received_ = 0;
  if (opener_) {
    // The number that its status has is the frame's, not the operation's.
    if (const Status opened = opener_->open(in_header_, payload, in_tag_); !opened.ok())
      return damaged(opened.message());
  } else {
    LOCKSTEP_ASSIGN(const Frame frame, parse_header(in_header_));
    if (frame.payload_crc != base::crc32c(payload)) {
      return damaged("the checksum of its payload is wrong");
    }
  }
  front.rest = front.rest.subspan(payload.size());
  if (!front.rest.empty()) return {};
  in_.pop_front();
  ++recvs_done_;
  return {};
}

// The peer ends the link and says why. Its words were read as if they were the expected payload and tag.
Status Link::take_last_words(const Frame& frame, std::size_t expected) {
  Status unknown = Status::aborted("the group has failed on that rank", {.failure = Failure::kRemoteError});
  const std::size_t tag = opener_ ? base::kSealTagSize : 0;
  if (frame.size > base::kMaxStatusSize) return unknown;
  Buffer words(frame.size + tag);
  std::size_t have = std::min(in_received_ - kHeaderSize, words.size());
  const std::size_t in_place = std::min(have, expected);
  if (in_place > 0) std::memcpy(words.data(), in_.front().rest.data(), in_place);
  if (have > in_place) std::memcpy(words.data() + in_place, in_tag_.data(), have - in_place);
  while (have < words.size()) {
    Pieces rest(have);
    rest.add(words.data(), words.size());
    msghdr message = rest.message();
    const ssize_t got = calls_.recv(socket_.get(), message);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return unknown;
    have += static_cast<std::size_t>(got);
  }
  const ByteSpan payload = ByteSpan(words).first(frame.size);
  if (opener_) {
    const Status opened = opener_->open(in_header_, payload, ByteSpan(words).last<base::kSealTagSize>());
    if (!opened.ok()) return damaged(opened.message());
  }
  if (frame.kind == FrameKind::kAbort) return base::parse_status(payload);
  mismatch_ = {.kind = frame.kind,
               .expected = in_.front().stamp,
               .received = frame.stamp,
               .expected_size = {},
               .received_size = {}};
  return Status::disconnected("it has left the group", {.failure = Failure::kDesync});
}

Result<bool> Link::progress() {
  if (fork_guard_->in_child())
    return Status::invalid("the link belongs to the parent of this forked process",
                           {.failure = Failure::kForked});
  LOCKSTEP_ASSIGN(const bool received, progress_in());
  auto sent = progress_out();
  if (sent.ok()) return received || *sent;
  // A peer that ended the link may have said why, which a failed send hides.
  if (!in_.empty()) LOCKSTEP_TRY(progress_in().status());
  return sent.status();
}

std::optional<Stamp> Link::unclaimed() {
  if (fork_guard_->in_child()) return std::nullopt;
  std::array<std::byte, kHeaderSize + base::kSealTagSize> bytes;
  const auto receive = [&](std::size_t size, int flags) {
    return ::recv(socket_.get(), bytes.data(), size, flags | MSG_DONTWAIT) == static_cast<ssize_t>(size);
  };
  while (in_.empty() && receive(kHeaderSize, MSG_PEEK)) {
    Header header;
    std::memcpy(header.data(), bytes.data(), header.size());
    const auto frame = parse_header(header);
    if (!frame.ok()) break;
    if (frame->kind == FrameKind::kData) return frame->stamp;
    const std::size_t whole = kHeaderSize + tag_size();
    if (frame->kind != FrameKind::kWaiting || !receive(whole, MSG_PEEK) || !receive(whole, 0)) break;
    if (opener_ && !opener_->open(header, {}, ByteView(bytes).last<base::kSealTagSize>()).ok()) break;
    peer_waits_in_ = frame->stamp;
  }
  return std::nullopt;
}

void Link::say_waiting(const Stamp& stamp) {
  if (out_.empty() && !sending_)
    out_.push_back({.kind = FrameKind::kWaiting, .stamp = stamp, .part = 0, .rest = {}});
}

void Link::finish(FrameKind kind, const Stamp& stamp, ByteView payload) {
  if (fork_guard_->in_child()) return;
  if (!sending_) {
    make_frame({.kind = kind, .stamp = stamp}, payload);
    while (!frame_sent() && send_rest() > 0) {
    }
  }
  (void)::shutdown(socket_.get(), SHUT_WR);
}

}  // namespace lockstep::transport::link
