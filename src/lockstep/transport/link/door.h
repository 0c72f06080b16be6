// A Door is where the sockets for links come in: one per process, for all its groups.
//
// Whoever comes proves itself by the handshake (Role::kData), then says what it comes for: a link, whose
// socket waits in its group's Inbox, or the news that a group has failed (lobby.h). What a stranger can cost
// is bounded as for every listener.
//
// Thread safety: any thread.
// Lifetime: an Inbox may outlive its door. In a forked child a door is of no use.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/net.h"
#include "lockstep/base/status.h"
#include "lockstep/store/tcp_options.h"
#include "lockstep/transport/link/lobby.h"
#include "lockstep/transport/transport.h"

namespace lockstep::transport::link {

struct DoorOptions {
  // Behaviour.
  Identity identity = {};
  std::vector<base::SocketAddress> addresses = {};  // bound exactly; port 0 picks one
  store::OpenToAll open_to_all = store::OpenToAll::kRefuse;
  // Performance: of the sockets that come in, as choose_congestion_control() in transport/congestion.h.
  std::string congestion_control = {};
  // Limits.
  std::size_t max_unproven = 64;
  std::size_t max_waiting = 4096;  // sockets for groups that are not made here yet; the oldest goes first
  Duration handshake_timeout = std::chrono::seconds(5);
  // For one who has passed the handshake to say what it comes for: it is a rank of this job, which may be
  // slow.
  Duration errand_timeout = std::chrono::minutes(5);
};

class Door {
 public:
  // kNoSecret if an address would be open to everyone who reaches it; kPortTaken.
  static Result<std::unique_ptr<Door>> open(DoorOptions options, const Clock& clock = Clock::steady());
  ~Door();
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  // Where it listens, with the ports that were picked.
  const std::vector<base::SocketAddress>& addresses() const;
  // Shared with the loop, which fills it.
  Result<std::shared_ptr<Inbox>> inbox(std::uint64_t group);
  // `hear` is called on the loop when news of the group come, or came already; it must not wait. Whoever
  // brought them is told what it gives back. One per group.
  void listen_for_news(std::uint64_t group, Lobby::Hear hear);
  // All groups that listen hear it, on the calling thread: something that they share has failed here.
  void tell_all(const Status& news);
  // Afterwards `hear` is not running and will not run, and what still comes for the group is dropped.
  void forget(std::uint64_t group);
  // Nobody comes in any more. Idempotent; destruction does it.
  void close();

 private:
  class Impl;
  explicit Door(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The other side: connects to a door and proves who we are. Tries the addresses in turn, and again if the
// door closes on us before it has said why, until the deadline.
struct Knock {
  const Identity& identity;
  std::uint64_t group = 0;
  std::uint16_t stream = 0;
  std::vector<base::SocketAddress> addresses = {};
  std::string congestion_control = {};  // as DoorOptions
  // What else ends the wait for an answer; asked every half second.
  std::function<Status()> look = [] { return Status(); };
};
Result<Arrival> knock(const Knock& knock, const Deadline& deadline);
// Tells the process behind a door that the group has failed, and hears what its host has recorded, now that
// it knows. kDisconnected if it answers nothing: it has no such group yet.
struct NewsAnswer {
  Status known;  // ok if the process has left the group
};
Result<NewsAnswer> bring_news(const Knock& knock, const Status& news, const Deadline& deadline);

}  // namespace lockstep::transport::link
