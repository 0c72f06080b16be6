#include "lockstep/store/job_secret.h"

#include <unistd.h>

#include "lockstep/base/text.h"

namespace lockstep::store {

Result<std::optional<Secret>> find_secret(const SecretSources& sources, const Environment& env) {
  using Found = std::optional<Secret>;
  const auto named = [](Result<Secret> secret, std::string_view source) -> Result<Found> {
    if (!secret.ok()) return secret.status().with_prefix(source);
    return Found(std::move(secret).value());
  };
  if (sources.file) return named(Secret::from_file(*sources.file), "");
  if (env.secret_fd) return named(Secret::from_fd(*env.secret_fd), "LOCKSTEP_SECRET_FD: ");
  if (env.secret_file) return named(Secret::from_file(*env.secret_file), "LOCKSTEP_SECRET_FILE: ");
  if (env.kubernetes.service_host && ::access(sources.mounted.c_str(), F_OK) == 0)
    return named(Secret::from_file(sources.mounted), "");
  return Found();
}

Status no_secret(std::string_view what) {
  return Status::invalid(
      cat(what,
          " would be open to everyone on the network, because this job has no secret. Make one "
          "with `lockstep secret FILE`, copy it to every host, and add this line for every "
          "rank:\n  export LOCKSTEP_SECRET_FILE=FILE\nor, on a network that you trust:\n  "
          "export LOCKSTEP_INSECURE=1"),
      {.failure = Failure::kNoSecret});
}

Status refuse_open_listener(std::string_view what, const base::SocketAddress& address, const Secret& secret,
                            OpenToAll open_to_all) {
  const bool closed = address.is_loopback() || !secret.is_insecure();
  return closed || open_to_all == OpenToAll::kAllow ? Status() : no_secret(what);
}

}  // namespace lockstep::store
