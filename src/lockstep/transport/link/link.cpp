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

// In each direction, before progress() returns: others want to be looked at, too.
constexpr int kMostCalls = 64;

Status damaged(std::string_view what) {
  return Status::disconnected(cat("a frame arrived damaged: ", what), {.failure = Failure::kCorruptFrame});
}

// The peer ends the link, and not all that it says of it can be heard.
Status unheard_words() {
  return Status::aborted("the group has failed on that rank", {.failure = Failure::kRemoteError});
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

void Link::begin(base::TimePoint now) {
  begun_ = now;
  peer_came_later_.reset();
}

Duration Link::age() const { return Clock::steady().now() - begun_; }

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
  if (sealer_) sealed_.resize(payload.size() + base::kSealTagSize);  // what may throw comes first
  frame.size = static_cast<std::uint32_t>(payload.size());
  frame.payload_crc = sealer_ ? 0 : base::crc32c(payload);
  frame.age = std::chrono::ceil<std::chrono::milliseconds>(age());
  out_header_ = write_header(frame);
  out_payload_ = payload;
  out_sent_ = 0;
  sending_ = true;
  if (!sealer_) return;
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
  for (int calls = 0; calls < kMostCalls; ++calls) {
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
  return moved;
}

ByteSpan Link::expected_payload() {
  return in_.front().rest.first(std::min(in_.front().rest.size(), kMaxPayload));
}

// Reads no further than the frame that is expected: whatever else comes ends the link anyway, or is shorter.
Result<bool> Link::progress_in() {
  bool moved = false;
  int calls = 0;
  while (!in_.empty()) {
    // The header first: a frame that is shorter than the expected one would be waited for in vain.
    if (in_received_ >= kHeaderSize) {
      LOCKSTEP_ASSIGN(const bool whole, take_received());
      if (whole) continue;
    }
    const ByteSpan expected = expected_payload();
    Pieces pieces(in_received_);
    pieces.add(in_header_.data(), kHeaderSize);
    if (in_frame_) {
      pieces.add(expected.data(), expected.size());
      pieces.add(in_tag_.data(), tag_size());
    } else {
      pieces.add(in_ahead_.data(), std::max(last_words_, std::min(expected.size() + tag_size(), kReadAhead)));
    }
    msghdr message = pieces.message();
    if (++calls > kMostCalls) return moved;
    const ssize_t received = calls_.recv(socket_.get(), message);
    if (received <= 0) {
      const int error = received == 0 ? 0 : errno;
      if (error == EINTR) continue;
      if (error == EAGAIN || error == EWOULDBLOCK) return moved;
      return last_words_ > 0 ? unheard_words() : connection_lost(error);
    }
    moved = true;
    in_received_ += static_cast<std::size_t>(received);
  }
  return moved;
}

Result<bool> Link::take_received() {
  if (!in_frame_) {
    LOCKSTEP_ASSIGN(const Frame frame, parse_header(in_header_));
    if (frame.kind == FrameKind::kWaiting) {
      if (in_received_ < kHeaderSize + tag_size()) return false;
      LOCKSTEP_TRY(take_waiting(frame));
      return true;
    }
    if (frame.kind != FrameKind::kData) return take_last_words(frame);
    LOCKSTEP_TRY(accept(frame));
  }
  if (in_received_ < kHeaderSize + expected_payload().size() + tag_size()) return false;
  LOCKSTEP_TRY(take_frame());
  return true;
}

// What came behind it is the beginning of the next frame.
Status Link::take_waiting(const Frame& frame) {
  const ByteSpan behind = behind_header();
  if (opener_) {
    const Status opened = opener_->open(in_header_, {}, ByteView(behind).first<base::kSealTagSize>());
    if (!opened.ok()) return damaged(opened.message());
  }
  const ByteSpan next = behind.subspan(tag_size());
  const ByteSpan of_header = next.first(std::min(next.size(), kHeaderSize));
  std::ranges::copy(of_header, in_header_.begin());
  std::ranges::copy(next.subspan(of_header.size()), in_ahead_.begin());
  in_received_ = next.size();
  peer_waits_in_ = frame.stamp;
  return {};
}

// If it is the expected one, what came with its header goes to where the rest will.
Status Link::accept(const Frame& frame) {
  const Incoming& front = in_.front();
  const ByteSpan expected = expected_payload();
  const bool more = front.rest.size() > expected.size();
  if (frame.stamp != front.stamp || frame.part != front.part || frame.size != expected.size() ||
      frame.more != more) {
    mismatch_ = {.kind = frame.kind,
                 .expected = front.stamp,
                 .received = frame.stamp,
                 .expected_size = Bytes{front.size},
                 .received_size = Bytes{front.size - front.rest.size() + frame.size}};
    return Status::disconnected("the ranks are in different operations", {.failure = Failure::kDesync});
  }
  // Its way takes time, too: the fastest frame says it best.
  const Duration later = age() - frame.age;
  peer_came_later_ = std::min(later, peer_came_later_.value_or(later));
  const ByteSpan behind = behind_header();
  const ByteSpan of_payload = behind.first(std::min(behind.size(), expected.size()));
  std::ranges::copy(of_payload, expected.begin());
  std::ranges::copy(behind.subspan(of_payload.size()), in_tag_.begin());
  in_frame_ = frame;
  return {};
}

// The expected frame is complete.
Status Link::take_frame() {
  Incoming& front = in_.front();
  const ByteSpan payload = expected_payload();
  const std::uint32_t payload_crc = in_frame_->payload_crc;
  in_frame_.reset();
  in_received_ = 0;
  if (opener_) {
    // The number that its status has is the frame's, not the operation's.
    if (const Status opened = opener_->open(in_header_, payload, in_tag_); !opened.ok())
      return damaged(opened.message());
  } else if (payload_crc != base::crc32c(payload)) {
    return damaged("the checksum of its payload is wrong");
  }
  front.rest = front.rest.subspan(payload.size());
  if (!front.rest.empty()) return {};
  in_.pop_front();
  ++recvs_done_;
  return {};
}

// The peer ends the link and says why.
Result<bool> Link::take_last_words(const Frame& frame) {
  if (frame.size > base::kMaxStatusSize) return unheard_words();
  last_words_ = frame.size + tag_size();
  const ByteSpan behind = behind_header();
  if (behind.size() < last_words_) return false;
  const ByteSpan payload = behind.first(frame.size);
  if (opener_) {
    const Status opened =
        opener_->open(in_header_, payload, ByteView(behind).subspan(frame.size).first<base::kSealTagSize>());
    if (!opened.ok()) return damaged(opened.message());
  } else if (frame.payload_crc != base::crc32c(payload)) {
    return damaged("the checksum of its payload is wrong");
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
  const auto sent = progress_out();
  if (sent.ok()) return received || *sent;
  // A peer that ended the link may have sent what is expected, or said why, which a failed send hides.
  if (!in_.empty()) LOCKSTEP_TRY(progress_in().status());
  if (!in_.empty() && is_readable()) return received;
  if (!in_.empty() || !only_says_waiting()) return sent.status();
  // Nothing is expected any more, and the peer needs no word of it.
  out_.clear();
  sending_ = false;
  return true;
}

bool Link::is_readable() const {
  pollfd socket{.fd = socket_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&socket, 1, 0) > 0;
}

bool Link::only_says_waiting() const {
  return std::ranges::all_of(out_,
                             [](const Outgoing& message) { return message.kind == FrameKind::kWaiting; });
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
