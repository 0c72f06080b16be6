// The abstract AF_UNIX socket beside a store's TCP port, for clients on the same host and network namespace.
//
// Its name follows from the address, the job and the epoch, so that a client who knows these finds it; it is
// no file, and goes with the process. Both sides ask the kernel for the other's user: only the same user, or
// root, goes on to the handshake, which is the same as over TCP. Thread safety: free functions, any thread.
// Sockets are close-on-exec and non-blocking.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/base/handshake.h"
#include "lockstep/base/net.h"
#include "lockstep/base/status.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::store {

// Without the leading zero byte of the abstract namespace.
// `address` is as the server has bound it.
std::string local_socket_name(const base::SocketAddress& address, const base::JobHash& job,
                              std::uint64_t epoch);

Result<base::UniqueFd> listen_local(const std::string& name);
// Fails at once if nobody listens there.
Result<base::UniqueFd> connect_local(const std::string& name);

// Who is at the other end, as the kernel knows it.
struct LocalPeer {
  unsigned int uid = 0;
  int pid = 0;

  // Of this process's user, or root.
  bool trusted() const;
  std::string text() const;  // "process 1234 of user 1000"
};
Result<LocalPeer> local_peer(int socket);

// True if `address` is one of this host's own, in this network namespace.
bool is_own_address(const base::SocketAddress& address);

}  // namespace lockstep::store
