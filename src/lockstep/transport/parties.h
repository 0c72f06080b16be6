// The two ends of a connection, for errors: every Status of a transport names both.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/status.h"
#include "lockstep/base/text.h"
#include "lockstep/store/job_secret.h"
#include "lockstep/transport/transport.h"

namespace lockstep::transport {

struct Parties {
  std::string self_text = {};  // "rank 0"
  std::optional<Rank> self = {};
  Peer peer = {};

  static Parties of(const Identity& identity, Peer peer) {
    return {.self_text = identity.text(), .self = identity.rank, .peer = std::move(peer)};
  }

  Cause cause(std::string_view op, Failure failure) const {
    return {.failure = failure, .rank = self, .peer = peer.rank, .op = std::string(op), .host = peer.host};
  }
  // "rank 0: recv of 4.0 KiB from rank 1 (10.0.0.1:4711): <what the status says>"; `doing` is "recv of 4.0
  // KiB from". The failure and its sequence number are kept.
  Status blame(const Status& status, std::string_view op, std::string_view doing) const {
    Cause merged = cause(op, status.failure());
    merged.sequence = status.cause().sequence;
    return status.with_prefix(cat(self_text, ": ", doing, ' ', peer.text(), ": "))
        .with_cause(std::move(merged));
  }
};

// kNoSecret if a listener on `address` would be open to everyone who reaches it.
inline Status refuse_open_listener(const Identity& identity, const base::SocketAddress& address,
                                   store::OpenToAll open_to_all) {
  const Status status = store::refuse_open_listener(
      cat("a listener on ", address.host(), " for job ", base::quoted(identity.job_id)), address,
      identity.secret, open_to_all);
  return status.with_prefix(cat(identity.text(), ": "))
      .with_cause({.failure = status.failure(), .rank = identity.rank, .op = "listen"});
}

// For what is called in a forked child.
inline Status forked(const Identity& identity, std::string_view op) {
  return Status::invalid(
      cat(identity.text(), ": ", op,
          " uses a transport that belongs to the parent of this forked process; make one of "
          "its own here."),
      {.failure = Failure::kForked, .rank = identity.rank, .op = std::string(op)});
}

}  // namespace lockstep::transport
