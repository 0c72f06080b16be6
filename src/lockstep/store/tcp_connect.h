// Reaching a store's server: look-up, AF_UNIX or TCP, handshake, and again until the deadline.
#pragma once

#include <optional>

#include "lockstep/base/clock.h"
#include "lockstep/base/handshake.h"
#include "lockstep/base/status.h"
#include "lockstep/store/tcp_conduit.h"
#include "lockstep/store/tcp_options.h"

namespace lockstep::store {

struct Connected {
  Conduit conduit;
  std::optional<base::SessionKeys> keys;  // none over a local socket

  bool local() const { return !keys.has_value(); }
};

// While nobody listens there, or the server has no room, it tries again until the deadline; the error names
// the endpoint and the last reason. A refusal (wrong job, secret, epoch or version) is final.
Result<Connected> connect_to_server(const TcpStoreOptions& options, const Deadline& deadline);

}  // namespace lockstep::store
