// One direction of an in-process connection: a bounded buffer between two loops.
//
// Thread safety: any thread; each end is used on its own loop.
// Whoever waits is woken by a task on its loop, posted under the lock: an end that has left is never posted
// to, so a loop may go once its ends have left.
#pragma once

#include <cstddef>
#include <functional>

#include "lockstep/base/bytes.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "lockstep/transport/loop.h"

namespace lockstep::transport::inproc {

class Pipe {
 public:
  enum class End : bool { kWriter, kReader };
  // Takes its memory with the first byte.
  explicit Pipe(std::size_t capacity) : capacity_(capacity) {}

  // `wake` runs on `loop` after an operation of this end found nothing to do and may now go on.
  void attach(End end, Loop& loop, std::function<void()> wake);
  // The other end is woken and finds out; bytes that were written can still be read.
  void leave(End end);

  // Copies what fits, or what is there, and returns how much; 0 arranges for the wake-up. kDisconnected if
  // the other end has left (for the reader: and everything was read).
  Result<std::size_t> write(ByteView bytes);
  Result<std::size_t> read(ByteSpan bytes);

 private:
  struct Side {
    Loop* loop = nullptr;
    std::function<void()> wake;
    bool waiting = false;
    bool left = false;
  };
  Side& side(End end) LOCKSTEP_REQUIRES(mutex_) { return end == End::kWriter ? writer_ : reader_; }
  void wake(Side& side) LOCKSTEP_REQUIRES(mutex_);

  const std::size_t capacity_;
  Mutex mutex_;
  Buffer ring_ LOCKSTEP_GUARDED_BY(mutex_);
  std::size_t begin_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::size_t size_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  Side writer_ LOCKSTEP_GUARDED_BY(mutex_);
  Side reader_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::transport::inproc
