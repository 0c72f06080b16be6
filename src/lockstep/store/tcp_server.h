// The server of TcpStore: one loop on one thread of its own, for any number of jobs on one port.
//
// Listens on exactly the address it is given, and on one abstract AF_UNIX socket per job for clients on the
// same host. Every connection opens with the handshake of base/handshake.h; what a stranger can cost is
// bounded (connections, bytes, time), and each limit is in TcpServerOptions. Grammar: docs/wire/store.md.
//
// Thread safety: every method may be called from any thread.
// close() asks, the destructor closes and waits for the thread. Clients then see their connection end.
// In a forked child it serves nobody, and destroying it there touches nothing of the parent's.
// Does not: keep its data anywhere but in memory, or replicate it.
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/base/net.h"
#include "lockstep/base/status.h"
#include "lockstep/store/tcp_options.h"

namespace lockstep::store {

class TcpStoreServer {
 public:
  // kInvalid with kNoSecret if an address that others can reach would be open to all; kPortTaken with the
  // owner's pid where visible. `clock` times the clients' waits.
  static Result<std::unique_ptr<TcpStoreServer>> start(TcpServerOptions options,
                                                       const Clock& clock = Clock::steady());
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  // Serves one more job from now on. kInvalid if a job of that id and epoch is served already.
  Status add_tenant(const TenantOptions& tenant);

  // As bound.
  const base::SocketAddress& address() const;
  // Where a client on this host connects to: the loopback address if all addresses are bound.
  base::Endpoint endpoint() const;

  void close();

 private:
  class Impl;
  explicit TcpStoreServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::store
