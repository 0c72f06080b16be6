#include "lockstep/store/tcp_frame.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/text.h"

namespace lockstep::store {
namespace {

constexpr std::size_t kSmallBuffer = 16U << 10;
constexpr std::size_t kLargeStep = 256U << 10;

}  // namespace

void FrameWriter::finish(Buffer& out, std::size_t start) {
  const std::size_t message_start = start + kFrameHeaderSize;
  const auto length = static_cast<std::uint32_t>(out.size() - message_start);
  out.resize(out.size() + base::kSealTagSize);
  std::memcpy(out.data() + start, &length, sizeof(length));
  const ByteSpan frame(out.data() + start, out.size() - start);
  sealer_.seal(frame.first(kFrameHeaderSize), frame.subspan(kFrameHeaderSize, length),
               frame.last<base::kSealTagSize>());
}

ByteSpan FrameReader::space() {
  if (begin_ == end_) {
    begin_ = end_ = 0;
    // A large message has passed; its memory is not kept for the small ones that follow.
    if (buffer_.size() > kLargeStep) Buffer().swap(buffer_);
  }
  if (buffer_.empty()) buffer_.resize(kSmallBuffer);
  if (begin_ > 0 && buffer_.size() - end_ < kSmallBuffer / 4) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ == buffer_.size()) {
    // A sender who announces much and sends little makes us hold at most twice what was sent.
    buffer_.resize(buffer_.size() + std::max(buffer_.size(), kSmallBuffer));
  }
  return ByteSpan(buffer_).subspan(end_);
}

Result<std::optional<ByteView>> FrameReader::next() {
  const std::size_t available = end_ - begin_;
  if (available < kFrameHeaderSize) return std::optional<ByteView>();
  const ByteSpan frame = ByteSpan(buffer_).subspan(begin_, available);
  std::uint32_t length = 0;
  std::memcpy(&length, frame.data(), sizeof(length));
  if (length == 0 || length > limit_) {
    return Status::invalid(cat("A frame announces ", length, " bytes; 1 to ", limit_, " are allowed."),
                           {.failure = Failure::kLimitExceeded});
  }
  if (available < kFrameOverhead + length) return std::optional<ByteView>();
  const ByteSpan message = frame.subspan(kFrameHeaderSize, length);
  const auto tag = frame.subspan(kFrameHeaderSize + length).first<base::kSealTagSize>();
  LOCKSTEP_TRY(opener_.open(frame.first(kFrameHeaderSize), message, tag));
  begin_ += kFrameOverhead + length;
  return std::optional<ByteView>(message);
}

}  // namespace lockstep::store
