// A CheckedPipe is the way to a neighbour and back through its pipes, in frames that each carry a checksum:
// for memory that is in doubt.
//
//   frame   size (4 bytes)  CRC32C of size and payload (4)  payload, at most kMaxPayload
//
// Both sides must have one. Thread safety: none; one thread at a time.
// Errors: as Pipes; kDisconnected with kCorruptFrame and the neighbour where a frame has changed since it was
// written, which is final.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/base/bytes.h"
#include "lockstep/base/status.h"
#include "lockstep/transport/shm/pipes.h"

namespace lockstep::transport::messages {

class CheckedPipe {
 public:
  static constexpr std::size_t kMaxPayload = 32U << 10;

  // The pipes outlive it.
  CheckedPipe(shm::Pipes& pipes, int neighbour) : pipes_(pipes), neighbour_(neighbour) {}

  // How many bytes have gone, with their frames. What follows must begin with those that have not.
  Result<std::size_t> write(ByteView bytes);
  // As many bytes as there are of whole frames.
  Result<std::size_t> read(ByteSpan bytes);

 private:
  static constexpr std::size_t kHeaderSize = 8;

  void make_frame(ByteView payload);
  // True once the frame that is received is whole, and right.
  Result<bool> receive();
  Status changed() const;

  shm::Pipes& pipes_;
  const int neighbour_;
  Buffer out_;  // the frame that is being written, and how much of it has gone
  std::size_t sent_ = 0;
  Buffer in_;  // the frame that is being received, and how much of it has come, or was given out
  std::size_t received_ = 0;
  std::size_t given_ = 0;
  Status failure_;  // of reading
};

}  // namespace lockstep::transport::messages
