#include "lockstep/store/tcp_connect.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "lockstep/base/net.h"
#include "lockstep/base/text.h"
#include "lockstep/store/tcp_local.h"

namespace lockstep::store {
namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(5);
constexpr Duration kLongestPause = std::chrono::milliseconds(250);
// The server gives up after 5 s; a client that waits a little longer hears why.
constexpr Duration kHandshakeTime = std::chrono::seconds(6);
// One address of several must not use up the time of the others.
constexpr Duration kTimePerAddress = std::chrono::seconds(5);

// Sooner than the server: somebody here waits for an answer.
constexpr base::KeepAlive kClientKeepAlive{.idle = std::chrono::seconds(10),
                                           .interval = std::chrono::seconds(5)};

std::string handshake_text(const TcpStoreOptions& options) {
  return cat("The handshake with the store at ", options.endpoint.text());
}

base::ClientHandshake handshake_for(const TcpStoreOptions& options) {
  const std::uint32_t rank = options.rank ? static_cast<std::uint32_t>(options.rank->value) : base::kNoRank;
  return {{.role = base::Role::kStore, .job_id = options.job_id, .epoch = options.epoch, .rank = rank},
          options.secret};
}

// All of the handshake but the verdict.
Status prove_both(base::ClientHandshake& handshake, int socket, const std::string& what,
                  const Deadline& deadline) {
  LOCKSTEP_TRY(base::send_all(socket, handshake.hello(), deadline, what));
  std::array<std::byte, base::kServerHelloSize> hello{};
  LOCKSTEP_TRY(base::recv_all(socket, hello, deadline, what));
  LOCKSTEP_ASSIGN(const auto proof, handshake.on_server_hello(hello));
  return base::send_all(socket, proof, deadline, what);
}

Result<Connected> open_local(base::UniqueFd socket, const TcpStoreOptions& options,
                             const Deadline& deadline) {
  base::ClientHandshake handshake = handshake_for(options);
  LOCKSTEP_TRY(prove_both(handshake, socket.get(), handshake_text(options), deadline));
  LOCKSTEP_ASSIGN(auto offer, Conduit::accept_pipes(std::move(socket), deadline));
  LOCKSTEP_TRY(handshake.on_verdict(offer.verdict));
  return Connected{.conduit = std::move(offer.conduit), .keys = {}};
}

Result<Connected> open_tcp(base::UniqueFd socket, const TcpStoreOptions& options, const Deadline& deadline) {
  const std::string what = handshake_text(options);
  base::ClientHandshake handshake = handshake_for(options);
  LOCKSTEP_TRY(prove_both(handshake, socket.get(), what, deadline));
  std::array<std::byte, base::kVerdictSize> verdict{};
  LOCKSTEP_TRY(base::recv_all(socket.get(), verdict, deadline, what));
  LOCKSTEP_TRY(handshake.on_verdict(verdict));
  return Connected{.conduit = Conduit(std::move(socket)), .keys = handshake.keys()};
}

// Nothing if there is no server of ours behind the local socket; TCP will tell more.
std::optional<base::UniqueFd> try_local(const base::SocketAddress& address, const TcpStoreOptions& options) {
  if (options.local_socket == LocalSocket::kOff || !is_own_address(address)) return std::nullopt;
  const base::JobHash job = base::job_hash(options.job_id);
  auto socket = connect_local(local_socket_name(address, job, options.epoch));
  if (!socket.ok()) {
    const auto any =
        base::SocketAddress::parse(address.family() == AF_INET6 ? "::" : "0.0.0.0", address.port());
    if (any.ok()) socket = connect_local(local_socket_name(*any, job, options.epoch));
  }
  if (!socket.ok()) return std::nullopt;
  const auto peer = local_peer(socket->get());
  if (!peer.ok() || !peer->trusted()) return std::nullopt;
  return std::move(socket).value();
}

Result<Connected> try_address(const base::SocketAddress& address, const TcpStoreOptions& options,
                              const Deadline& deadline) {
  const Deadline soon = deadline.at_most(kHandshakeTime);
  if (auto local = try_local(address, options)) return open_local(std::move(*local), options, soon);
  LOCKSTEP_ASSIGN(auto socket,
                  base::connect_to(address, deadline.at_most(kTimePerAddress), base::OnRefused::kFail));
  base::watch_connection(socket.get(), kClientKeepAlive);
  return open_tcp(std::move(socket), options, soon);
}

// What another try may mend: nobody there yet, no room, no answer.
bool may_pass(const Status& status) {
  return status.code() == Code::kDisconnected || status.code() == Code::kTimeout ||
         status.failure() == Failure::kLimitExceeded;
}

Status gave_up(const TcpStoreOptions& options, const Status& last, Duration waited) {
  return Status(
      Code::kTimeout,
      cat("No connection to the store at ", options.endpoint.text(), " in ", waited, ": ", last.message()),
      {.op = "connect", .host = options.endpoint.text()});
}

}  // namespace

Result<Connected> connect_to_server(const TcpStoreOptions& options, const Deadline& deadline) {
  const base::TimePoint start = deadline.clock().now();
  Duration pause = kFirstPause;
  while (true) {
    Status last;
    auto addresses = base::resolve(options.endpoint, deadline);
    if (!addresses.ok()) return addresses.status();
    for (const base::SocketAddress& address : *addresses) {
      auto connected = try_address(address, options, deadline);
      if (connected.ok()) return connected;
      if (!may_pass(connected.status())) {
        return connected.status().with_prefix(cat("TcpStore ", options.endpoint.text(), ": "));
      }
      last = connected.status();
    }
    if (deadline.expired()) return gave_up(options, last, deadline.clock().now() - start);
    std::this_thread::sleep_for(deadline.clock().patience(std::min(pause, deadline.remaining())));
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace lockstep::store
