// A Backend is one group of ranks and the operations that they do together.
//
// Order: collectives of a group run one at a time, in the order in which a rank issues them, which must be
// the same on all ranks. run() does it on the calling thread; start() leaves it to the group's worker, or to
// whoever waits for it first. Messages between two ranks take no part in that order: they are matched by
// peer and tag, and an operation that waits never holds them up.
// Thread safety: any thread.
// Errors: kInvalid for a call that this rank can see to be wrong; nothing was sent and the group lives on.
// Of a message, an error that comes from its deadline or size alone, or from a peer that has left the group
// (kDesync); the group lives on. Everything else is final, the timeout of a monitored_barrier too: the first
// failure of any rank is recorded once, every rank's pending and later operations return it, and no call
// waits for ever. Make a new group, or shrink this one. (After a monitored_barrier of torch's gloo has timed
// out the group looks alive, but its ranks are out of step: the next collective waits until its timeout.)
// Destruction leaves the group: it fails what is pending here with kAborted, and waits for nobody else.
// Does not: retry.
// Implemented by native/ and mpi/.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/backend/work.h"
#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/collective/call.h"

namespace lockstep::backend {

constexpr Duration kDefaultOpTimeout = std::chrono::minutes(30);

struct OpOptions {
  std::optional<Deadline> deadline = {};  // else the group's timeout from the call
  // start() and messages: kept until the operation no longer uses its bytes.
  std::shared_ptr<const void> keep = {};
};

class Backend {
 public:
  virtual ~Backend() = default;

  // In this group.
  virtual Rank rank() const = 0;
  virtual WorldSize size() const = 0;
  virtual const std::string& name() const = 0;
  // A member's rank in the world.
  virtual Rank world_rank(Rank member) const = 0;

  virtual Status run(const Call& call, const OpOptions& options = {}) = 0;
  virtual WorkPtr start(const Call& call, const OpOptions& options = {}) = 0;

  // Like a barrier, but a timeout names, on ranks that came and those that come later, all that did not.
  virtual Status monitored_barrier(const OpOptions& options = {}) = 0;

  // Messages. Those of one sender, receiver and tag arrive in the order in which they were sent. Sizes must
  // agree: another size is kInvalid, and the group lives on; of a message of up to 64 KiB the receive alone
  // may hear it, because its send has ended, and the sender's log has a line. A rank may send to itself.
  virtual WorkPtr send(Rank to, std::uint64_t tag, ByteView bytes, const OpOptions& options = {}) = 0;
  // Without `from`, the first message with the tag, from whomever.
  virtual WorkPtr recv(std::optional<Rank> from, std::uint64_t tag, ByteSpan bytes,
                       const OpOptions& options = {}) = 0;

  // For operations that are given no deadline.
  virtual Duration timeout() const = 0;
  virtual void set_timeout(Duration timeout) = 0;
  // How many collectives have been issued here.
  virtual std::uint64_t sequence() const = 0;

  // The failure that has ended the group; ok while it lives.
  virtual Status failure() const = 0;
  // Ends the group for all its ranks, which hear `why`. The first failure wins.
  virtual void abort(const Status& why) = 0;
};

}  // namespace lockstep::backend

namespace lockstep {
using backend::Backend;
using backend::OpOptions;
}  // namespace lockstep
