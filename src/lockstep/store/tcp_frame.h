// Frames on a byte stream: u32 length | message of that length | 16-byte tag. docs/wire/store.md.
//
// Over TCP the message is sealed, and the length is authenticated with it. Over an AF_UNIX socket, of which
// the kernel knows both ends and which nobody else can read or write, frames are plain and have no tag. The
// length is checked against the limit before anything is allocated for it, and memory is made for bytes that
// have come, never for bytes that were only announced. Thread safety: each belongs to one direction of one
// connection and to one thread at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include "lockstep/base/bytes.h"
#include "lockstep/base/crypto.h"
#include "lockstep/base/status.h"

namespace lockstep::store {

constexpr std::size_t kFrameHeaderSize = 4;

// Nothing for plain frames.
using FrameKey = std::optional<base::SealKey>;

class FrameWriter {
 public:
  explicit FrameWriter(const FrameKey& key) {
    if (key) sealer_.emplace(*key);
  }

  // Appends one frame to `out`; `fill(out)` appends its message, which is sealed where it stands. If there is
  // no memory for it, `out` is as before.
  template <typename Fill>
  void write(Buffer& out, Fill&& fill) {
    const std::size_t start = out.size();
    try {
      out.resize(start + kFrameHeaderSize);
      std::forward<Fill>(fill)(out);
      finish(out, start);
    } catch (...) {
      out.resize(start);
      throw;
    }
  }

 private:
  void finish(Buffer& out, std::size_t start);

  std::optional<base::Sealer> sealer_;
};

class FrameReader {
 public:
  FrameReader(const FrameKey& key, std::size_t limit) : limit_(limit) {
    if (key) opener_.emplace(*key);
  }

  // Where the next received bytes go; never empty. With `scratch`, which the readers of one thread share,
  // they go there unless a message is half received: so a reader between two messages holds no memory. Views
  // given out by next() end here.
  ByteSpan space(ByteSpan scratch = {});
  void received(std::size_t count) { end_ += count; }
  // The next message, opened in place; nothing while the frame is incomplete. An error (kLimitExceeded,
  // kCorruptFrame) is final: the stream cannot be understood any more.
  Result<std::optional<ByteView>> next();
  // Takes what was received and not given out from the scratch space, which others use from now on.
  void settle();
  // Bytes held, for accounting.
  std::size_t memory() const { return buffer_.size(); }

 private:
  std::optional<base::Opener> opener_;
  std::size_t limit_;
  Buffer buffer_;
  ByteSpan bytes_;  // the scratch space or `buffer_`; [begin_, end_) of it is received and not yet given out
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace lockstep::store
