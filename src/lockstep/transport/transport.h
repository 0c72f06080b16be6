// A Transport makes connections between the ranks of one job, on one loop with one thread of its own.
//
// Thread safety: every method may be called from any thread; callbacks as in connection.h.
// Lifetime: a transport outlives its connections and listeners (this is checked), and is not destroyed in a
// callback of its own. Destruction fails connects that are under way with kAborted, and waits for them.
// In a forked child it is of no use, and destroying it there touches nothing of the parent's.
// Does not: retry, look up names, or reconnect.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/base/net.h"
#include "lockstep/base/secret.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/transport/connection.h"

namespace lockstep::transport {

class Loop;

// Who this process is. Both ends of a connection must agree on job, epoch, secret and world size.
struct Identity {
  std::string job_id = {};
  std::uint64_t epoch = 0;
  Secret secret = Secret::insecure();
  std::optional<Rank> rank = {};  // none for a tool that is no rank
  WorldSize world{1};

  std::string text() const;  // "rank 0", "this process"
};

// Where to connect to, and who must answer there.
struct Target {
  base::Endpoint endpoint = {};
  std::optional<Rank> rank = {};  // another rank there is an error; none accepts any
};

class Transport {
 public:
  virtual ~Transport() = default;

  // kDisconnected if nobody listens there; kRejected, kVersionMismatch, kWorldSizeMismatch if the two do not
  // belong together; kTimeout at the deadline, or if the handshake takes longer than its own limit.
  virtual void connect(const Target& target, const Deadline& deadline, Connected done) = 0;
  // Port 0 picks one. kPortTaken names the port.
  virtual Result<std::unique_ptr<Listener>> listen(const base::Endpoint& bind) = 0;
  virtual const Clock& clock() const = 0;
  // The one that callbacks run on, for what is built on connections and shares their thread.
  virtual Loop& loop() = 0;
};

}  // namespace lockstep::transport
