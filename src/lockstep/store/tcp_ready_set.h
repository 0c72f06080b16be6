// The sockets of a server's sessions, watched together beside the loop's other work.
//
// Asio arms a socket anew for each wait and calls each handler by itself. Here a socket is armed once, and
// all that are ready are handled as one batch, in the order in which they became ready; at the end of the
// batch the owner sends all answers. That saves a system call per request, and a wake-up of the other core
// for most. Edge-triggered: who does not read all that there is calls rearm().
//
// Thread safety: none; lives on the server's loop.
// Ownership: a watcher removes itself before it is destroyed, and never while a batch is handled.
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <functional>

#include "lockstep/store/tcp_conduit.h"

namespace lockstep::store {

class ReadySet {
 public:
  class Watcher {
   public:
    virtual ~Watcher() = default;
    // Nothing comes after what has come by now: a short read is not the last one. can_receive_on_loop()
    // follows.
    virtual void has_ended_on_loop() = 0;
    // Something may have come, or the connection has ended.
    virtual void can_receive_on_loop() = 0;
    // After arm_sending().
    virtual void can_send_on_loop() = 0;
  };

  // `after_batch` runs after each batch.
  ReadySet(asio::io_context& loop, std::function<void()> after_batch);

  // False if the kernel has no memory for it.
  [[nodiscard]] bool add(const Conduit& conduit, Watcher& watcher);
  // Becomes ready if there is something to receive now, or at its end.
  void rearm_receiving(const Conduit& conduit, Watcher& watcher);
  // Becomes ready as soon as it can be sent to, once, besides.
  void arm_sending(const Conduit& conduit, Watcher& watcher);
  void remove(const Conduit& conduit);

 private:
  void wait_on_loop();
  void handle_on_loop();

  asio::posix::stream_descriptor epoll_;
  const std::function<void()> after_batch_;
};

}  // namespace lockstep::store
