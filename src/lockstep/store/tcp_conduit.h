// The bytes of one connection after its handshake: a TCP socket, or two pipes between processes of one host.
//
// A pipe costs half of what an AF_UNIX socket does for a small message (no buffer of its own for each, fewer
// wake-ups), so the server hands its local clients a pair of pipes over the AF_UNIX socket, which is closed
// then. Where that fails (descriptors, no /proc) the socket stays.
//
// Thread safety: receive() and send() may run on two threads at once.
// In a forked child the descriptors are replaced by /dev/null (base/fork_guard.h).
#pragma once

#include <sys/types.h>

#include <array>
#include <memory>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/handshake.h"
#include "lockstep/base/status.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::store {

class Conduit {
 public:
  explicit Conduit(base::UniqueFd socket);
  Conduit(base::UniqueFd receiving, base::UniqueFd sending);

  // For poll(2) and epoll(7); equal for a socket.
  int receiving() const { return receiving_.get(); }
  int sending() const { return sending_ ? sending_.get() : receiving_.get(); }
  bool is_socket() const { return !sending_; }

  // As recv(2) and send(2) with MSG_DONTWAIT: -1 and errno, 0 at the end. Never raises SIGPIPE on a socket;
  // for a pipe see below.
  ssize_t receive(ByteSpan bytes) const;
  ssize_t send(ByteView bytes) const;
  bool in_child() const { return guards_.front()->in_child(); }

  // The last message of the handshake. Over an AF_UNIX connection it comes in one piece with the pipes, so
  // that the client sleeps once for both.
  using VerdictBytes = std::array<std::byte, base::kVerdictSize>;

  // Server: makes two pipes and passes their other ends over `socket`, an AF_UNIX connection, with the
  // accepting verdict. Does not fail: if there are no descriptors, the client is told to stay with the
  // socket. Who sends into the pipes blocks SIGPIPE on its thread.
  static Conduit offer_pipes(base::UniqueFd socket, const VerdictBytes& verdict);
  // Client: takes them. Keeps a reading end of its own sending pipe open, so that SIGPIPE is never raised;
  // the server's end is seen by receive().
  struct Offer;
  static Result<Offer> accept_pipes(base::UniqueFd socket, const Deadline& deadline);

 private:
  void guard(int descriptor);

  base::UniqueFd receiving_;
  base::UniqueFd sending_;  // empty for a socket
  base::UniqueFd keeper_;
  // By pointer: a guard stays where it is, a conduit moves.
  std::vector<std::unique_ptr<base::ForkGuard>> guards_;
};

// The conduit is for use only once the verdict was found good. With a refusal it is the socket.
struct Conduit::Offer {
  VerdictBytes verdict;
  Conduit conduit;
};

}  // namespace lockstep::store
