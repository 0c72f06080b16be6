// A Connection is an ordered, reliable, authenticated stream of bytes to one peer; a Listener takes them in.
//
// Thread safety: every method may be called from any thread. Callbacks run on the transport's loop, one at a
// time, never inside the call that started them, never with a lock held. They must not throw, and must not
// wait for another callback of the same loop.
// Ownership: the bytes passed in belong to the connection until its callback runs.
// Every callback runs exactly once, also after an error or close().
// Errors: the first failure of a connection is final; every later operation reports the same Status, which
// names both ranks, the peer's address and the operation that met it. An expired deadline is a failure too:
// nobody can say where in the stream the next operation would begin.
// Deadlines are on the transport's clock.
// Destruction closes. Outside of the loop it also waits until every callback has run, so hold no lock that
// a callback takes. In a callback it does not wait: the rest of the callbacks follow, the bytes are free.
// In a forked child nothing works: the callback runs inside the call, with kForked.
// Does not: retry or reconnect, keep the borders between messages, or notice a peer's end while no
// operation is pending.
// Implemented by inproc/ and tcp/; faulty/ wraps any of them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/net.h"
#include "lockstep/base/status.h"

namespace lockstep::transport {

using Done = std::function<void(const Status&)>;

// The other end.
struct Peer {
  std::optional<Rank> rank = {};  // none for a tool that is no rank
  std::string host = {};          // "10.0.0.1:4711", as the connection sees it

  std::string text() const;  // "rank 3 (10.0.0.1:4711)"
};

class Connection {
 public:
  virtual ~Connection() = default;

  // Done when the last byte is on its way, not when it has arrived. Operations of one direction complete in
  // the order they were started. A size of zero is allowed, and waits for its turn.
  virtual void send(ByteView bytes, const Deadline& deadline, Done done) = 0;
  // Done when all of `bytes` is filled. What the peer sent before it closed can still be received.
  virtual void recv(ByteSpan bytes, const Deadline& deadline, Done done) = 0;
  // Stops new operations and fails pending ones with kAborted. What was sent before still arrives, followed
  // by a goodbye that tells the peer from a death. Does not wait; idempotent.
  virtual void close() = 0;
  virtual const Peer& peer() const = 0;
};

using Connected = std::function<void(Result<std::unique_ptr<Connection>>)>;

// Thread safety, callbacks and destruction as for Connection.
class Listener {
 public:
  virtual ~Listener() = default;

  // Takes the next connection whose peer has proven who it is. Calls are answered in order; one that times
  // out leaves the listener as it was. Connections that nobody accepts wait, up to the transport's limit.
  virtual void accept(const Deadline& deadline, Connected done) = 0;
  // Stops listening, fails pending accepts with kAborted, and drops connections that nobody has accepted.
  virtual void close() = 0;
  // Where peers connect to; with the port that was picked.
  virtual const base::Endpoint& endpoint() const = 0;
};

}  // namespace lockstep::transport
