// Accepts connections on one listening socket, TCP or AF_UNIX.
//
// Takes a bounded number per turn, so that a flood of connects does not keep the loop from its clients, and
// none while the greeter has no room: the rest waits in the kernel's backlog. Out of descriptors (EMFILE) it
// says so once a minute and rests for a while instead of spinning.
// Thread safety: none; lives on the server's loop, and may be destroyed there at any time.
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <memory>
#include <string>

#include "lockstep/base/fork_guard.h"
#include "lockstep/base/log.h"
#include "lockstep/base/net.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/store/tcp_greeter.h"

namespace lockstep::store {

class Listener {
 public:
  // `name` is for log lines.
  Listener(asio::io_context& loop, base::UniqueFd socket, Greeter& greeter, base::RateLimit& log_limit,
           std::string name);

  // Accepts what is there, then waits for more. Also called by whoever made room in the greeter.
  void accept_on_loop();

 private:
  void wait_on_loop();
  // 0 if there are no more for now or the turn is over, EBUSY if the greeter is full, else what accept(2)
  // says.
  int accept_some_on_loop();
  void greet_on_loop(base::UniqueFd socket, std::unique_ptr<base::ForkGuard> guard,
                     const base::SocketAddress& address);
  void rest_on_loop(int error);

  asio::posix::stream_descriptor socket_;
  const base::ForkGuard fork_guard_;
  asio::steady_timer rest_;
  Greeter& greeter_;
  base::RateLimit& log_limit_;
  const std::string name_;
  int rests_ = 0;  // since the last connection was accepted
  bool waiting_ = false;
  bool accepting_ = false;
  // Tells handlers that are due already that this is gone.
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace lockstep::store
