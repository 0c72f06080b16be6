// The Links of a group are its sockets to members on other hosts, made when they are first used or by
// connect(), and moved on by the thread that runs the group's operation: nothing happens between its calls.
//
// An operation begins with its stamp, posts what it sends and receives, and waits. Messages between two
// members are matched by their order; every frame carries the stamp and the message's number, so members that
// are in different operations notice it. A send that was posted is under way: it needs no matching receive to
// be posted first. Whoever waits moves everything that was posted, so two members that send to each other
// first do not hold each other up.
//
// Of two members the one with the lower position connects.
// Thread safety: none; one thread at a time.
// Ownership: posted bytes are in use until their ticket is done, or any call has failed. Those of a receive
// are not written before its message comes: until then the caller may read them.
// Errors: kDisconnected with kPeerDied, kPeerUnreachable or kCorruptFrame; what the peer said before it
// closed; Desync as `describe` puts it; kTimeout with the peer. The first is final for the operation, and its
// caller ends the group with abort().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/net.h"
#include "lockstep/base/status.h"
#include "lockstep/transport/introduction.h"
#include "lockstep/transport/link/door.h"
#include "lockstep/transport/link/link.h"
#include "lockstep/transport/link/socket_calls.h"
#include "lockstep/transport/transport.h"

namespace lockstep::transport::link {

// A sign of another member's operation that does not come with a message that is expected.
struct Stray {
  enum class Kind : std::uint8_t {
    kMessage,  // one that has come, and nobody expects it
    kWaiting,  // the member waits for a message from this one, or did so when it said it
  };
  Kind kind;
  Stamp last;  // of this member's operation before the one it is in
  Stamp now;
  Stamp received;
};

struct LinksOptions {
  // Behaviour.
  std::uint64_t group = 0;  // the same number on all members, and no other group's
  Identity identity = {};
  int position = 0;
  std::vector<Rank> ranks = {};                                  // in the world, by position
  std::vector<std::vector<base::SocketAddress>> addresses = {};  // of each member's door, by position
  Protection protection = Protection::kIntegrity;
  // What else ends a wait; asked at least every 20 ms.
  std::function<Status()> look = [] { return Status(); };
  // Whether a member has left for good: it makes no connection any more, but one may still be on its way.
  std::function<bool(Rank)> has_left = [](Rank) { return false; };
  // The error for two members that are in different operations.
  std::function<Status(Rank peer, const Mismatch&)> describe = {};
  // The error for a member that must be in another operation; ok if it may only be early or late.
  std::function<Status(Rank peer, const Stray&)> judge = [](Rank, const Stray&) { return Status(); };
  // Outlives the links. Anything but the kernel's is for tests.
  std::reference_wrapper<SocketCalls> calls = SocketCalls::kernel();
  // Performance.
  int streams = 1;                      // per pair; messages take turns
  Duration spin = {};                   // how long a wait keeps its core before it sleeps
  std::string congestion_control = {};  // of the sockets that this member makes, as DoorOptions
};

class Links {
 public:
  // Of a message in one direction.
  struct Ticket {
    enum class Direction : bool { kOut, kIn };
    int peer = 0;
    int stream = 0;
    Direction direction = Direction::kOut;
    std::uint64_t number = 0;  // it is done when so many are
  };

  Links(LinksOptions options, std::shared_ptr<Inbox> inbox);
  ~Links();

  // Makes the links to these members now instead of at their first use, and waits for those that they make.
  // They must do the same. kTimeout names all that did not come.
  Status connect(std::span<const int> peers, const Deadline& deadline);

  // Looks for strays if the last operation has sent and received nothing: it has compared itself with nobody.
  Status begin(const Stamp& stamp);
  Result<Ticket> send(int peer, ByteView bytes, const Deadline& deadline);
  Result<Ticket> recv(int peer, ByteSpan bytes, const Deadline& deadline);

  bool done(const Ticket& ticket) const;
  // Moves what can be moved now.
  Status progress();
  Status wait(const Ticket& ticket, const Deadline& deadline) { return wait_for_one({&ticket, 1}, deadline); }
  // Until one of them is done; a timeout names the first.
  Status wait_for_one(std::span<const Ticket> tickets, const Deadline& deadline);

  // In the operation that was begun last: who of those whose messages this member has slept for had come to
  // it latest, and by how much later than this member; no longer than it has slept. Who sends late because it
  // waits for another one has not come late. Nothing if this member has not slept.
  struct Late {
    int peer;
    Duration by;
  };
  std::optional<Late> latest() const;

  // What has come from members besides what is expected of them, as LinksOptions::judge sees it. Waits look,
  // too.
  Status look_for_strays();

  // Says to a member that expects nothing of this one in which operation this one is, over a link that is
  // made for it if need be; it has a higher position. False if it could not be reached until the deadline.
  bool tell_of_operation(int peer, const Deadline& deadline);

  // The error for a member that has left; ok if it has not.
  Status look_whether_it_left(Rank rank) const;

  // Tells every member that there is a link to; nothing is sent after that. Does not wait; idempotent.
  // Without memory it throws std::bad_alloc, and may be called again.
  void abort(const Status& why);
  // Members of one other host, which share what they have recorded.
  struct Host {
    std::vector<int> members;
    bool all = true;  // that may live
  };
  // Tells the first member of each host that can be reached, and hears what its host has recorded by then.
  // Takes at most a second for each. Whether one of each host has answered, or all of it have left.
  bool spread_news(const std::vector<Host>& hosts, const Status& why,
                   const std::function<void(const Status&)>& hear) const;
  // The same for a member that leaves; the stamp is of its last operation.
  void leave();

 private:
  // One socket, or the posts that wait for it to come.
  struct Stream {
    std::unique_ptr<Link> link;
    struct Post {
      std::uint32_t part;
      ByteView out;
      ByteSpan in;
      Ticket::Direction direction;
    };
    std::vector<Post> waiting;
    std::uint64_t sends = 0;
    std::uint64_t recvs = 0;
    std::optional<Stamp> said_waiting = {};  // in which operation
  };
  struct Pair {
    std::vector<Stream> streams;
    std::uint32_t sends = 0;  // since begin()
    std::uint32_t recvs = 0;
    std::optional<base::TimePoint> left_at = {};  // when it was waited for in vain, and had left
  };

  // Makes what is missing of its streams, if this member is who connects.
  Result<Pair*> pair_with(int peer, const Deadline& deadline);
  Status dial(int peer, int number, Stream& stream, const Deadline& deadline);
  void attach(Stream& stream, Arrival arrival, Ticket::Direction connected);
  void take_arrivals();
  // From members that nothing was sent to or expected of yet.
  void take_uninvited();
  Result<bool> move_all();
  Status sleep(const Deadline& deadline, Duration longest);
  // To all from whom a message is awaited; once in an operation.
  void say_waiting();
  void say_waiting(Stream& stream);
  Status blame(int peer, const Link& link, const Status& status) const;
  void close_all(FrameKind kind, ByteView payload);

  const LinksOptions options_;
  const std::shared_ptr<Inbox> inbox_;  // shared with the door's loop, which fills it
  Stamp stamp_{};
  Stamp last_stamp_{};
  base::TimePoint begun_{};
  std::map<int, Duration> slept_;  // in this operation, by peer
  std::map<int, Pair> pairs_;
  int waiting_streams_ = 0;  // how many have no socket yet
  bool closed_ = false;
};

}  // namespace lockstep::transport::link
