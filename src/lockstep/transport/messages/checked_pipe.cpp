#include "lockstep/transport/messages/checked_pipe.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/text.h"

namespace lockstep::transport::messages {
namespace {

// The first four bytes of a frame, and those behind its checksum.
std::uint32_t checksum_of(ByteView frame, std::size_t header) {
  return base::crc32c(frame.subspan(header), base::crc32c(frame.first(sizeof(std::uint32_t))));
}

std::uint32_t number_at(ByteView frame, std::size_t at) {
  std::uint32_t number = 0;
  std::memcpy(&number, frame.data() + at, sizeof(number));
  return number;
}

}  // namespace

void CheckedPipe::make_frame(ByteView payload) {
  const auto size = static_cast<std::uint32_t>(payload.size());
  out_.resize(kHeaderSize + payload.size());
  std::memcpy(out_.data(), &size, sizeof(size));
  std::ranges::copy(payload, out_.begin() + kHeaderSize);
  const std::uint32_t checksum = checksum_of(out_, kHeaderSize);
  std::memcpy(out_.data() + sizeof(size), &checksum, sizeof(checksum));
  sent_ = 0;
}

Result<std::size_t> CheckedPipe::write(ByteView bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    if (out_.empty()) make_frame(bytes.subspan(done, std::min(kMaxPayload, bytes.size() - done)));
    const auto written = pipes_.write(neighbour_, ByteView(out_).subspan(sent_));
    if (!written.ok()) return written.status();
    sent_ += *written;
    if (sent_ < out_.size()) break;
    done += out_.size() - kHeaderSize;
    out_.clear();
  }
  return done;
}

Result<std::size_t> CheckedPipe::read(ByteSpan bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    if (given_ == in_.size()) {
      const auto whole = failure_.ok() ? receive() : failure_;
      if (!whole.ok()) failure_ = whole.status();
      if (!whole.ok() && done == 0) return failure_;  // else the next call has it
      if (!whole.ok() || !*whole) break;
    }
    const ByteView rest = ByteView(in_).subspan(given_);
    const ByteView part = rest.first(std::min(rest.size(), bytes.size() - done));
    std::ranges::copy(part, bytes.begin() + static_cast<std::ptrdiff_t>(done));
    done += part.size();
    given_ += part.size();
  }
  return done;
}

Result<bool> CheckedPipe::receive() {
  if (received_ == in_.size()) {
    in_.assign(kHeaderSize, {});
    received_ = 0;
  }
  while (received_ < in_.size()) {
    given_ = in_.size();  // nothing of it is to be given out
    const auto read = pipes_.read(neighbour_, ByteSpan(in_).subspan(received_));
    if (!read.ok()) return read.status();
    received_ += *read;
    if (received_ < in_.size()) return false;
    if (in_.size() > kHeaderSize) break;
    const std::uint32_t size = number_at(in_, 0);
    if (size == 0 || size > kMaxPayload) return changed();
    in_.resize(kHeaderSize + size);
  }
  if (number_at(in_, sizeof(std::uint32_t)) != checksum_of(in_, kHeaderSize)) return changed();
  given_ = kHeaderSize;
  return true;
}

Status CheckedPipe::changed() const {
  const Rank rank = pipes_.domain().rank_of(neighbour_);
  return Status::disconnected(
      cat("bytes of a message that rank ", rank,
          " wrote to shared memory have changed since: they do not fit their checksum"),
      {.failure = Failure::kCorruptFrame, .peer = rank});
}

}  // namespace lockstep::transport::messages
