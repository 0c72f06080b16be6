// Where a rank has the job's secret from, and what it is told when it has none.
//
// In this order: the caller's file, LOCKSTEP_SECRET_FD (our launcher), LOCKSTEP_SECRET_FILE, and in a
// Kubernetes pod the file at kMountedSecret if it is there. A secret that is there but cannot be read is an
// error, never skipped. Thread safety: free functions, any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/environment.h"
#include "lockstep/base/net.h"
#include "lockstep/base/secret.h"
#include "lockstep/base/status.h"
#include "lockstep/store/tcp_options.h"

namespace lockstep::store {

constexpr std::string_view kMountedSecret = "/var/run/secrets/lockstep/secret";

struct SecretSources {
  std::optional<std::string> file;      // the caller's
  std::string mounted{kMountedSecret};  // looked at only in a Kubernetes pod
};
// Nothing if no one has given one.
Result<std::optional<Secret>> find_secret(const SecretSources& sources, const Environment& env);

// kNoSecret, with the lines to add. `what` says what would be open: "The store at 10.0.0.1:29500".
Status no_secret(std::string_view what);
// no_secret() if a listener on `address` would be open to everyone who reaches it, and nobody said that it
// may.
Status refuse_open_listener(std::string_view what, const base::SocketAddress& address, const Secret& secret,
                            OpenToAll open_to_all);

}  // namespace lockstep::store
