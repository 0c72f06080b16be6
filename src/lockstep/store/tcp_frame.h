// Sealed frames on a byte stream: u32 length | ciphertext of that length | 16-byte tag. docs/wire/store.md.
//
// The length is checked against the limit before anything is allocated for it, and memory is made for bytes
// that have come, never for bytes that were only announced. The length is authenticated with the frame.
// Thread safety: each belongs to one direction of one connection and to one thread at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include "lockstep/base/bytes.h"
#include "lockstep/base/crypto.h"
#include "lockstep/base/status.h"

namespace lockstep::store {

constexpr std::size_t kFrameHeaderSize = 4;
constexpr std::size_t kFrameOverhead = kFrameHeaderSize + base::kSealTagSize;

class FrameWriter {
 public:
  explicit FrameWriter(const base::SealKey& key) : sealer_(key) {}

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

  base::Sealer sealer_;
};

class FrameReader {
 public:
  FrameReader(const base::SealKey& key, std::size_t limit) : opener_(key), limit_(limit) {}

  // Where the next received bytes go; never empty. Views given out by next() end here.
  ByteSpan space();
  void received(std::size_t count) { end_ += count; }
  // The next message, opened in place; nothing while the frame is incomplete. An error (kLimitExceeded,
  // kCorruptFrame) is final: the stream cannot be understood any more.
  Result<std::optional<ByteView>> next();
  // Bytes held, for accounting.
  std::size_t memory() const { return buffer_.size(); }

 private:
  base::Opener opener_;
  std::size_t limit_;
  Buffer buffer_;  // [begin_, end_) is received and not yet given out
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace lockstep::store
