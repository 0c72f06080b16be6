// A Wire moves the bytes of one connection without ever blocking: what a Stream is built on.
//
// Thread safety: none; lives on the loop.
// Ownership: never keeps the caller's bytes after a call. Shared by the handlers that wait for it.
// Errors: a message says what happened, as the end of a sentence; the Stream says who and in which operation.
// The first error is final.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "lockstep/base/bytes.h"
#include "lockstep/base/status.h"

namespace lockstep::transport {

class Wire {
 public:
  virtual ~Wire() = default;

  // From now on `wake` is called, on the loop and not inside a call of this object, when a write, flush or
  // read that could not finish may go on. It is dropped in close_on_loop().
  virtual void start_on_loop(std::function<void()> wake) = 0;

  // Takes some of `bytes` and returns how many; fewer than all if there is no room for now.
  virtual Result<std::size_t> write_on_loop(ByteView bytes) = 0;
  // How far into the outgoing stream the Wire has taken bytes, in a measure of its own.
  virtual std::uint64_t taken() const = 0;
  // Sends on what was taken; returns how far into the stream it is out of this process's hands.
  virtual Result<std::uint64_t> flush_on_loop() = 0;

  // Fills the front of `bytes` and returns how many; 0 if there is nothing for now. `bytes` is not empty.
  virtual Result<std::size_t> read_on_loop(ByteSpan bytes) = 0;

  // What was taken is still sent, as far as the peer takes it, and then a goodbye. Idempotent.
  virtual void close_on_loop() = 0;
};

}  // namespace lockstep::transport
