// A connected socket on a loop: closed in a forked child, and waited for without blocking.
//
// Thread safety: none; lives on the loop. A handler runs once, on the loop, unless close_on_loop() comes
// first.
#pragma once

#include <asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include "lockstep/base/bytes.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/status.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/transport/loop.h"

namespace lockstep::transport::tcp {

class Socket {
 public:
  // TCP_NODELAY is set, and keep-alive, so that a host that vanished is noticed by a wait without a deadline.
  Socket(Loop& loop, UniqueFd fd);
  ~Socket() { close_on_loop(); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int fd() { return state_->descriptor.native_handle(); }

  // At most one wait of each kind is under way; a second call is none.
  void when_readable_on_loop(std::function<void()> handler);
  void when_writable_on_loop(std::function<void()> handler);

  // How many bytes were moved; 0 if none can be for now. kDisconnected, with the end of a sentence, if the
  // peer has gone: kPeerDied, or kPeerUnreachable where the network says so.
  Result<std::size_t> send_on_loop(ByteView bytes);
  Result<std::size_t> recv_on_loop(ByteSpan bytes);

  void shutdown_send_on_loop();
  void close_on_loop();

 private:
  // Shared with the handlers that wait, which may run after the Socket is gone.
  struct State {
    asio::posix::stream_descriptor descriptor;
    std::optional<base::ForkGuard> fork_guard;
    std::function<void()> readable;
    std::function<void()> writable;
  };
  using Slot = std::function<void()> State::*;
  void wait_on_loop(asio::posix::descriptor_base::wait_type what, Slot slot, std::function<void()> handler);

  std::shared_ptr<State> state_;
};

}  // namespace lockstep::transport::tcp
