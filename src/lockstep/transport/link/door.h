// A Door is where the sockets for links come in: one per process, for all its groups.
//
// Whoever comes proves itself by the handshake (Role::kData), then says what it comes for: a link, whose
// socket waits in its group's Inbox, or the news that a group has failed. What a stranger can cost is bounded
// as for every listener.
//
// Thread safety: any thread.
// Lifetime: an Inbox may outlive its door. In a forked child a door is of no use.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/handshake.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/net.h"
#include "lockstep/base/status.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/store/tcp_options.h"
#include "lockstep/transport/transport.h"

namespace lockstep::transport::link {

// A socket whose other end is a rank of the job.
struct Arrival {
  UniqueFd socket;
  base::SessionKeys keys;
};

// What has come for one group.
class Inbox {
 public:
  static Result<std::shared_ptr<Inbox>> make();

  // The socket that `from` has opened for `stream`, if it is here.
  std::optional<Arrival> take(Rank from, std::uint16_t stream);
  void put(Rank from, std::uint16_t stream, Arrival arrival);
  // Readable after something came, until take() was called.
  int fd() const { return event_.get(); }

 private:
  explicit Inbox(UniqueFd event) : event_(std::move(event)) {}

  const UniqueFd event_;
  Mutex mutex_;
  std::map<std::pair<Rank, std::uint16_t>, Arrival> arrivals_ LOCKSTEP_GUARDED_BY(mutex_);
};

struct DoorOptions {
  // Behaviour.
  Identity identity = {};
  std::vector<base::SocketAddress> addresses = {};  // bound exactly; port 0 picks one
  store::OpenToAll open_to_all = store::OpenToAll::kRefuse;
  // Performance: of the sockets that come in, as choose_congestion_control() in transport/congestion.h.
  std::string congestion_control = {};
  // Limits.
  std::size_t max_unproven = 64;
  std::size_t max_waiting = 4096;  // sockets that no group has taken
  Duration handshake_timeout = std::chrono::seconds(5);
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
  // `hear` is called on the loop when news of the group come, or came already; it must not wait. One per
  // group.
  void listen_for_news(std::uint64_t group, std::function<void(const Status&)> hear);
  // Afterwards `hear` is not running and will not run.
  void forget(std::uint64_t group);

 private:
  class Impl;
  explicit Door(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The other side: connects to a door and proves who we are. Tries the addresses in turn until the deadline.
struct Knock {
  const Identity& identity;
  std::uint64_t group = 0;
  std::uint16_t stream = 0;
  std::vector<base::SocketAddress> addresses = {};
  std::string congestion_control = {};  // as DoorOptions
};
Result<Arrival> knock(const Knock& knock, const Deadline& deadline);
// Tells the process behind a door that the group has failed.
Status bring_news(const Knock& knock, const Status& news, const Deadline& deadline);

}  // namespace lockstep::transport::link
