// A Lobby keeps what has come through a Door for the groups of this process: sockets for links, and the news
// that a group has failed. Also for groups that are not made here yet: the other members may be faster.
//
// Bounds: what waits for groups that are not made is limited, and the oldest goes first. What comes for a
// group that was forgotten is dropped; the last kForgotten of those are known.
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "lockstep/base/handshake.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/transport/recent_ids.h"

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
  bool empty() const;
  void put(Rank from, std::uint16_t stream, Arrival arrival);
  // Readable after something came, until take() was called.
  int fd() const { return event_.get(); }

 private:
  explicit Inbox(UniqueFd event) : event_(std::move(event)) {}

  const UniqueFd event_;
  mutable Mutex mutex_;
  std::map<std::pair<Rank, std::uint16_t>, Arrival> arrivals_ LOCKSTEP_GUARDED_BY(mutex_);
};

class Lobby {
 public:
  static constexpr std::size_t kForgotten = 1024;
  static constexpr std::size_t kEarlyNews = 64;
  // Gives back the group's failure as this host knows it then.
  using Hear = std::function<Status(const Status&)>;

  explicit Lobby(std::size_t max_early_sockets) : max_early_sockets_(max_early_sockets) {}

  // Of a group that is made here; with it come the sockets that were early. Shared with whoever takes from
  // it.
  Result<std::shared_ptr<Inbox>> inbox(std::uint64_t group);
  // kAborted if the group was forgotten; then the socket is closed.
  Status put(std::uint64_t group, Rank from, std::uint16_t stream, Arrival arrival);

  // `hear` is called under a lock and must not wait: by tell(), or at once if the news were early.
  void listen_for_news(std::uint64_t group, Hear hear);
  // What `hear` answers; ok if the group was left. Nothing if it is not made here yet.
  std::optional<Status> tell(std::uint64_t group, const Status& news);
  // Every group that is made here.
  void tell_all(const Status& news);

  // Afterwards the group's `hear` is not running and will not run.
  void forget(std::uint64_t group);

  // How much it holds.
  struct Sizes {
    std::size_t groups = 0;
    std::size_t listeners = 0;
    std::size_t early_sockets = 0;
    std::size_t early_news = 0;
    std::size_t forgotten = 0;
  };
  Sizes sizes() const;

 private:
  struct EarlySocket {
    std::uint64_t group;
    Rank from;
    std::uint16_t stream;
    Arrival arrival;
  };

  using EarlyNews = std::deque<std::pair<std::uint64_t, Status>>;
  EarlyNews::iterator early_news_of(std::uint64_t group) LOCKSTEP_REQUIRES(mutex_);

  const std::size_t max_early_sockets_;
  mutable Mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<Inbox>> inboxes_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Hear> listeners_ LOCKSTEP_GUARDED_BY(mutex_);
  std::deque<EarlySocket> early_sockets_ LOCKSTEP_GUARDED_BY(mutex_);
  EarlyNews early_news_ LOCKSTEP_GUARDED_BY(mutex_);
  RecentIds forgotten_ LOCKSTEP_GUARDED_BY(mutex_){kForgotten};
};

}  // namespace lockstep::transport::link
