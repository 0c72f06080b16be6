// A Link is one socket to one peer of a group: a queue of messages out, and a queue of buffers for those that
// come in. It never waits: progress() moves what can be moved now, in a bounded number of calls of the
// kernel.
//
// A message is cut into frames of at most kMaxPayload; its bytes go from and to the caller's memory, and only
// the first few of a frame that comes are copied. A message that arrives before its buffer was posted stays
// in the kernel's buffers.
//
// Thread safety: none; the thread that runs the group's operation.
// Ownership: the bytes of a message are the caller's, and in use until it is done or the link has failed. A
// buffer is not written before its own message comes: until then the caller may read it.
// Errors: the first is final. What the peer said before it ended the link is the error.
// Does not: connect, wait, or name the operation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/crypto.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/status.h"
#include "lockstep/base/status_bytes.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/transport/link/frame.h"
#include "lockstep/transport/link/socket_calls.h"

namespace lockstep::transport::link {

// For a link whose bytes are encrypted.
struct LinkKeys {
  base::SealKey send;
  base::SealKey recv;
};

// A message that came with another stamp or size than the one that was expected, or a goodbye instead of it:
// the group is out of step.
struct Mismatch {
  FrameKind kind;
  Stamp expected;
  Stamp received;  // of a goodbye: the peer's last operation
  Bytes expected_size;
  Bytes received_size;
};

class Link {
 public:
  // `calls` outlives it.
  Link(UniqueFd socket, const std::optional<LinkKeys>& keys, SocketCalls& calls = SocketCalls::kernel());
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // What is posted from now on belongs to an operation that this member has begun at `now`.
  void begin(base::TimePoint now);
  // By how much its peer has come to it later than this member, or less; nothing if no frame has come in it.
  std::optional<Duration> peer_came_later() const { return peer_came_later_; }

  void send(const Stamp& stamp, std::uint32_t part, ByteView bytes);
  void recv(const Stamp& stamp, std::uint32_t part, ByteSpan bytes);
  // How many messages of each direction are done, since the link was made; they are done in order.
  std::uint64_t sends_done() const { return sends_done_; }
  std::uint64_t recvs_done() const { return recvs_done_; }
  bool pending() const { return !out_.empty() || !in_.empty(); }
  bool expects() const { return !in_.empty(); }

  // True if any byte moved. kDisconnected with kPeerDied, kPeerUnreachable or kCorruptFrame; the status that
  // the peer sent; kDesync if it has left, or if mismatch() says more. Where nothing can be sent any more,
  // what has come is received first.
  Result<bool> progress();
  const std::optional<Mismatch>& mismatch() const { return mismatch_; }
  // The stamp of a message that is here and that nobody has posted a buffer for. It stays where it is.
  std::optional<Stamp> unclaimed();
  // Tells the peer that we wait for its message, unless there is something else to send.
  void say_waiting(const Stamp& stamp);
  // Where the peer has waited for a message of ours last, as it said.
  const std::optional<Stamp>& peer_waits_in() const { return peer_waits_in_; }

  // For poll(2): what progress() waits for.
  int fd() const { return socket_.get(); }
  short events() const;

  // A last frame, if the stream is between two frames and the kernel takes it at once; then nothing more is
  // sent. The socket stays open until destruction: closed with unread bytes it would reset the connection,
  // and the peer would lose what it has not read.
  void finish(FrameKind kind, const Stamp& stamp, ByteView payload);

 private:
  // Of a payload and its tag, what is read together with the header: a small message is one call.
  static constexpr std::size_t kReadAhead = std::size_t{4} << 10;
  static_assert(base::kMaxStatusSize + base::kSealTagSize <= kReadAhead);

  struct Outgoing {
    FrameKind kind;
    Stamp stamp;
    std::uint32_t part;
    ByteView rest;  // what no frame has taken yet
  };
  struct Incoming {
    Stamp stamp;
    std::uint32_t part;
    ByteSpan rest;  // what no frame has filled yet
    std::size_t size;
  };

  // Of this member's operation.
  Duration age() const;
  // Makes the frame that is sent next.
  void make_frame(Frame frame, ByteView payload);
  bool frame_sent() const { return out_sent_ == kHeaderSize + out_payload_.size(); }
  // As sendmsg(2), of what is left of it.
  ssize_t send_rest();
  Result<bool> progress_out();
  Result<bool> progress_in();
  // Whether the socket has bytes, or its end, for progress_in().
  bool is_readable() const;
  bool only_says_waiting() const;
  // Where the payload of the frame that is expected goes.
  ByteSpan expected_payload();
  std::size_t tag_size() const { return opener_ ? base::kSealTagSize : 0; }
  // What was received behind the header of a frame that may not be the expected one.
  ByteSpan behind_header() { return ByteSpan(in_ahead_).first(in_received_ - kHeaderSize); }
  // True if it was a whole frame; there may be another one behind it.
  Result<bool> take_received();
  Status take_waiting(const Frame& frame);
  Status accept(const Frame& frame);
  Status take_frame();
  // False if not all of it has come.
  Result<bool> take_last_words(const Frame& frame);

  UniqueFd socket_;
  SocketCalls& calls_;
  std::optional<base::ForkGuard> fork_guard_;
  base::TimePoint begun_{};
  std::optional<Duration> peer_came_later_;
  std::optional<base::Sealer> sealer_;
  std::optional<base::Opener> opener_;

  std::deque<Outgoing> out_;
  std::uint64_t sends_done_ = 0;
  // The frame that is being sent: its header, its payload, and how much of both has gone.
  bool sending_ = false;
  Header out_header_{};
  ByteView out_payload_;
  Buffer sealed_;  // payload and tag, where frames are sealed
  std::size_t out_sent_ = 0;

  std::deque<Incoming> in_;
  std::uint64_t recvs_done_ = 0;
  // The frame that is being received: its header, what came with the header, and how much of all has come.
  // Once it is known to be the expected one, its payload goes to the buffer.
  Header in_header_{};
  std::array<std::byte, kReadAhead> in_ahead_{};
  std::optional<Frame> in_frame_;
  std::array<std::byte, base::kSealTagSize> in_tag_{};
  std::size_t in_received_ = 0;
  std::size_t last_words_ = 0;  // bytes behind the header of a frame that ends the link
  std::optional<Mismatch> mismatch_;
  std::optional<Stamp> peer_waits_in_;
};

}  // namespace lockstep::transport::link
