// How the ranks of one host get a secret when nobody has given them one: rank 0 makes it and hands it out
// over an abstract AF_UNIX socket, to processes of its own user (or root) only, as the kernel names them.
//
// The socket lives in the network namespace, as the loopback addresses do that it protects; it is no file and
// goes with the process.
// Thread safety: the server has a thread of its own; fetch from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/net.h"
#include "lockstep/base/secret.h"
#include "lockstep/base/status.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::store {

// Which secret is meant: that of the store at this address. Who has the secret may still be refused there,
// for its job or epoch, and then hears so.
std::string local_secret_name(const base::SocketAddress& store);

// Hands the secret out until it is destroyed. In a forked child it does nothing.
class LocalSecretServer {
 public:
  // kPortTaken if another process hands one out under that name.
  static Result<std::unique_ptr<LocalSecretServer>> start(const std::string& name, const Secret& secret);
  ~LocalSecretServer();
  LocalSecretServer(const LocalSecretServer&) = delete;
  LocalSecretServer& operator=(const LocalSecretServer&) = delete;

 private:
  LocalSecretServer(base::UniqueFd listener, base::UniqueFd stop, const Secret& secret);
  void serve();

  const Secret secret_;
  base::UniqueFd listener_;
  base::UniqueFd stop_;  // an eventfd
  const base::ForkGuard fork_guard_;
  std::thread thread_;
};

// Asks until the deadline while nobody hands one out under `name` and nobody listens at `store` either.
// kNoSecret if the store is there and hands none out; kRejected if it belongs to another user.
Result<Secret> fetch_local_secret(const std::string& name, const base::SocketAddress& store,
                                  const Deadline& deadline);

}  // namespace lockstep::store
