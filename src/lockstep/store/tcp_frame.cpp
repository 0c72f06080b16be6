#include "lockstep/store/tcp_frame.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/text.h"

namespace lockstep::store {
namespace {

constexpr std::size_t kSmallBuffer = 4U << 10;
constexpr std::size_t kLargeStep = 256U << 10;

}  // namespace

void FrameWriter::finish(Buffer& out, std::size_t start) {
  const std::size_t message_start = start + kFrameHeaderSize;
  const auto length = static_cast<std::uint32_t>(out.size() - message_start);
  std::memcpy(out.data() + start, &length, sizeof(length));
  if (!sealer_) return;
  out.resize(out.size() + base::kSealTagSize);
  const ByteSpan frame(out.data() + start, out.size() - start);
  sealer_->seal(frame.first(kFrameHeaderSize), frame.subspan(kFrameHeaderSize, length),
                frame.last<base::kSealTagSize>());
}

ByteSpan FrameReader::space(ByteSpan scratch) {
  if (begin_ == end_) {
    begin_ = end_ = 0;
    if (!scratch.empty()) {
      if (!buffer_.empty()) Buffer().swap(buffer_);
      bytes_ = scratch;
      return bytes_;
    }
    // A large message has passed; its memory is not kept for the small ones that follow.
    if (buffer_.size() > kLargeStep) Buffer().swap(buffer_);
  }
  if (buffer_.empty()) buffer_.resize(kSmallBuffer);
  if (begin_ > 0 && buffer_.size() - end_ < kSmallBuffer / 4) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  // A sender who announces much and sends little makes us hold at most twice what was sent.
  if (end_ == buffer_.size()) buffer_.resize(2 * buffer_.size());
  bytes_ = buffer_;
  return bytes_.subspan(end_);
}

void FrameReader::settle() {
  if (bytes_.data() == buffer_.data()) return;
  const ByteSpan rest = bytes_.subspan(begin_, end_ - begin_);
  bytes_ = {};
  begin_ = 0;
  end_ = rest.size();
  if (rest.empty()) return;
  buffer_.resize(std::max(rest.size(), kSmallBuffer));
  std::memcpy(buffer_.data(), rest.data(), rest.size());
  bytes_ = buffer_;
}

Result<std::optional<ByteView>> FrameReader::next() {
  const std::size_t available = end_ - begin_;
  if (available < kFrameHeaderSize) return std::optional<ByteView>();
  const ByteSpan frame = bytes_.subspan(begin_, available);
  std::uint32_t length = 0;
  std::memcpy(&length, frame.data(), sizeof(length));
  if (length == 0 || length > limit_) {
    return Status::invalid(cat("A frame announces ", length, " bytes; 1 to ", limit_, " are allowed."),
                           {.failure = Failure::kLimitExceeded});
  }
  const std::size_t size = kFrameHeaderSize + length + (opener_ ? base::kSealTagSize : 0);
  if (available < size) return std::optional<ByteView>();
  const ByteSpan message = frame.subspan(kFrameHeaderSize, length);
  if (opener_) {
    const auto tag = frame.subspan(kFrameHeaderSize + length).first<base::kSealTagSize>();
    LOCKSTEP_TRY(opener_->open(frame.first(kFrameHeaderSize), message, tag));
  }
  begin_ += size;
  return std::optional<ByteView>(message);
}

}  // namespace lockstep::store
