// A Messenger carries messages between this process and all ranks of its job, matched by group, sender and
// tag. There is one per process. Messages between ranks of one host go through pipes in shared memory, those
// to other hosts over connections.
//
//   Messenger messenger(transport, std::move(listener), {.rank = Rank(0), .endpoints = endpoints});
//   messenger.recv(group, Rank(1), tag, bytes, deadline, [](const Status& status, auto source) { ... });
//
// Thread safety, ownership of bytes, destruction and forked children are as for a Connection: calls come from
// any thread and never wait. Every callback runs exactly once, with no lock held, on the thread that has
// completed the operation: that of a call of this messenger (send() may complete its own message), one that
// waits, the attendant or the loop. Order: messages of one group, sender, receiver and tag match receives in
// the order of sending. Any mixture of sends and receives makes progress: one that waits holds up no other.
// Sizes must agree. A message that finds a receive of another size is kInvalid on both sides, with both
// sizes, and nothing else suffers. Deadlines are on the transport's clock. An operation whose deadline passes
// is withdrawn, with kTimeout, and the messenger lives on. If the connection holds its bytes just then, this
// waits for them, at most `stall_timeout`; after that the peer counts as lost. A receive whose message is
// withdrawn by the sender after the two have met fails with kTimeout too. Errors: a peer that is lost (its
// connection failed, or it closed) fails its pending and later operations with a Status that names it.
// Messages that came whole before can still be received. Receives from any rank stay as long as
// others may serve them. The same holds, in its group, of a peer that has left the group.
// A peer that cannot be reached for want of something here, descriptors or shared memory, is lost as well;
// the Status names this rank. Without memory for a message the messenger ends: pending and later operations
// get kNoMemory. In both cases ranks of this host hear kRemoteError. A call that throws std::bad_alloc has
// begun nothing, and its callback is never called. Does not: retry, reconnect, or watch a peer with whom it
// has no connection yet (seek() makes one). Grammar: docs/wire/messages.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/net.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/transport/connection.h"
#include "lockstep/transport/messages/progress.h"
#include "lockstep/transport/shm/pipes.h"
#include "lockstep/transport/shm/wait.h"
#include "lockstep/transport/transport.h"

namespace lockstep::transport::messages {

// With the rank that the message came from, or that is meant, where that is known.
using Received = std::function<void(const Status&, std::optional<Rank>)>;

// Shared by the receives of a group.
using Senders = std::shared_ptr<const std::vector<Rank>>;

// A message of at most this size is sent at once; a larger one asks first.
constexpr std::size_t kEagerLimit = 64U << 10;

// An operation that ends because of its peer is held back for so long: if its group ends meanwhile, that is
// why.
struct EchoGraces {
  Duration unreachable = {};  // where the peer cannot be reached (kPeerUnreachable): it may have died
  Duration failure = {};      // where the peer says that the group has failed: its news may take so long
  Duration other = {};
};

struct MessengerOptions {
  // Behaviour.
  Rank rank{0};                                // in the job
  std::vector<base::Endpoint> endpoints = {};  // of every rank's listener, by rank
  Duration connect_timeout = std::chrono::seconds(30);
  Duration stall_timeout = std::chrono::seconds(1);
  EchoGraces graces = {};
  // Hears, at once, that something cannot be had here: with the rank that is lost, or with none if the
  // messenger has ended for want of memory. As a callback of an operation.
  Received failed = {};
  // After so long a receive asks its peer whether that is still in the group; it may make a connection for
  // it. One from any rank asks the first that may be, and the next when that has left. None: never, so that a
  // receive from one that has left ends with its deadline.
  std::optional<Duration> watch_after = {};
  // Performance; the same on all ranks.
  Bytes eager_budget = Bytes::mib(1);  // what a peer may send before anyone receives it
  // To the ranks of this host that it has met; none: all ranks are reached over connections. Shared with
  // whoever still sleeps on its bell.
  std::shared_ptr<shm::Pipes> pipes = {};
  shm::Patience patience = {};  // of those who wait
};

class Messenger {
 public:
  // The transport outlives it. Ranks are those of the job. There is no listener in a world of one.
  Messenger(Transport& transport, std::unique_ptr<Listener> listener, const MessengerOptions& options);
  ~Messenger();
  // What destruction does: pending and later operations get kClosed, and no callback runs afterwards but
  // those of the calls of other threads. Idempotent.
  void close();
  Messenger(const Messenger&) = delete;
  Messenger& operator=(const Messenger&) = delete;

  // Done when the last byte is on its way. Up to kEagerLimit that is at once, as long as the messages to this
  // peer that nobody has received fit the budget; otherwise when the receive has been posted. Of a message
  // that was already on its way and then did not fit, the receive says so, and the sender's log, once a
  // minute for each peer: its send had ended. (To itself, a rank hears it from the receive.)
  void send(std::uint64_t group, Rank to, std::uint64_t tag, ByteView bytes, const Deadline& deadline,
            Done done);
  // Without `from`, the first message with that tag to arrive from anyone in the group. Then `others` may say
  // who that can be besides this rank: when all of them are gone it ends, with what became of the first of
  // them that is lost, or kClosed. Nothing: it ends with its deadline.
  void recv(std::uint64_t group, std::optional<Rank> from, std::uint64_t tag, ByteSpan bytes,
            const Deadline& deadline, Received done, Senders others = {});
  // The group has ended: its pending and later operations get `why`, what has arrived for it is forgotten,
  // and what still arrives is dropped. Groups are never reused. The first call counts.
  void fail_group(std::uint64_t group, const Status& why);
  // Makes a connection to that rank unless there is one: a receive alone makes none, and so does not hear
  // that the rank is gone. For one of whom that is known from elsewhere; what it has sent still comes.
  void seek(Rank peer);
  // For threads that wait for their messages, and for an Attendant, which is needed where there are pipes.
  std::shared_ptr<Progress> progress() const;
  // The group's owner is gone, and calls nothing for it any more. Why it ended is forgotten, and after 1,024
  // other groups also that it was there: what arrives for it then waits, within the sender's budget.
  void leave_group(std::uint64_t group);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // shared with what is posted to the loop
};

}  // namespace lockstep::transport::messages
