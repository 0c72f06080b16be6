#include "lockstep/transport/inproc/pipe.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace lockstep::transport::inproc {
namespace {

Status closed_by_peer() {
  return Status::disconnected("the peer closed the connection", {.failure = Failure::kClosed});
}

}  // namespace

void Pipe::attach(End end, Loop& loop, std::function<void()> wake) {
  const MutexLock lock(mutex_);
  side(end).loop = &loop;
  side(end).wake = std::move(wake);
}

void Pipe::leave(End end) {
  std::function<void()> dropped;  // destroyed without the lock
  const MutexLock lock(mutex_);
  Side& own = side(end);
  if (std::exchange(own.left, true)) return;
  own.loop = nullptr;
  dropped = std::exchange(own.wake, nullptr);
  wake(end == End::kWriter ? reader_ : writer_);
}

void Pipe::wake(Side& side) {
  if (!std::exchange(side.waiting, false) || side.loop == nullptr) return;
  side.loop->post(side.wake);
}

Result<std::size_t> Pipe::write(ByteView bytes) {
  const MutexLock lock(mutex_);
  if (reader_.left) return closed_by_peer();
  const std::size_t count = std::min(bytes.size(), capacity_ - size_);
  if (count < bytes.size()) writer_.waiting = true;
  if (count == 0) return count;
  if (ring_.empty()) ring_.resize(capacity_);
  const std::size_t end = (begin_ + size_) % ring_.size();
  const std::size_t first = std::min(count, ring_.size() - end);
  std::memcpy(ring_.data() + end, bytes.data(), first);
  std::memcpy(ring_.data(), bytes.data() + first, count - first);
  size_ += count;
  wake(reader_);
  return count;
}

Result<std::size_t> Pipe::read(ByteSpan bytes) {
  const MutexLock lock(mutex_);
  if (size_ == 0) {
    if (writer_.left) return closed_by_peer();
    reader_.waiting = true;
    return std::size_t{0};
  }
  const std::size_t count = std::min(bytes.size(), size_);
  const std::size_t first = std::min(count, ring_.size() - begin_);
  std::memcpy(bytes.data(), ring_.data() + begin_, first);
  std::memcpy(bytes.data() + first, ring_.data(), count - first);
  begin_ = (begin_ + count) % ring_.size();
  size_ -= count;
  wake(writer_);
  return count;
}

}  // namespace lockstep::transport::inproc
