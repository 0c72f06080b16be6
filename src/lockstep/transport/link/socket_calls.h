// The calls that links make of the kernel: where a fault can be put between a link and its socket.
//
// The default makes them; FaultyCalls (faulty_calls.h) spoils them. Next to a system call the way through
// here costs nothing.
// Thread safety: as Links, whose thread calls it.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include "lockstep/base/types.h"

namespace lockstep::transport::link {

class SocketCalls {
 public:
  virtual ~SocketCalls() = default;

  // The kernel's own, without faults. May be used by any number of threads.
  static SocketCalls& kernel();

  // As sendmsg(2) and recvmsg(2), but never waits and never raises SIGPIPE.
  virtual ssize_t send(int socket, const msghdr& message) = 0;
  virtual ssize_t recv(int socket, msghdr& message) = 0;
  // A connection to the peer is about to be made.
  virtual void connecting(Rank peer) = 0;
};

}  // namespace lockstep::transport::link
