// What a caller says to serve a store over TCP, or to become its client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/handshake.h"
#include "lockstep/base/net.h"
#include "lockstep/base/secret.h"
#include "lockstep/base/types.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/store/store.h"

namespace lockstep::store {

// A job on a server: who may come in, and what it may use. Each has keys and queues of its own.
struct TenantOptions {
  std::string job_id = {};
  std::uint64_t epoch = 0;
  Secret secret = Secret::insecure();
  WorldSize world{1};
  // Default: 2 x world + 16.
  std::optional<std::size_t> max_connections = {};
  // Of keys, values and queues; beyond it a write is refused. What is on its way to and from clients, with
  // the requests that wait, has the same bound again; beyond it the client that asks for more is
  // disconnected.
  Bytes max_memory = Bytes::gib(4);
};

// Whether a server on an address that other hosts can reach may serve a job that has no secret.
enum class OpenToAll : bool { kRefuse, kAllow };
// Whether to use the abstract AF_UNIX socket beside the port.
enum class LocalSocket : bool { kOff, kOn };

struct TcpServerOptions {
  // Behaviour. Exactly this address is bound; port 0 picks one.
  std::string bind_host = "127.0.0.1";
  std::uint16_t port = 0;
  // An inherited socket that is bound and listens already; then the two above do not count.
  base::UniqueFd listening = {};
  std::vector<TenantOptions> tenants = {};
  OpenToAll open_to_all = OpenToAll::kRefuse;
  // Limits.
  std::size_t max_unproven = 64;  // connections that have not finished their handshake, per listening socket
  Duration handshake_timeout = std::chrono::seconds(5);
  Bytes max_send_queue = Bytes::mib(64);  // per connection; a client that does not read is disconnected there
  // Performance.
  LocalSocket local_socket = LocalSocket::kOn;
};

struct TcpStoreOptions {
  // Behaviour.
  base::Endpoint endpoint = {};
  std::string job_id = {};
  std::uint64_t epoch = 0;
  Secret secret = Secret::insecure();
  std::optional<Rank> rank = {};  // for the server's log lines
  Duration timeout = kDefaultTimeout;
  // Performance.
  LocalSocket local_socket = LocalSocket::kOn;
};

}  // namespace lockstep::store
