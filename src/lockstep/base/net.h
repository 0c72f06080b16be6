// Addresses, interfaces, listening and connecting: the little that store, launcher and transports share.
//
// Thread safety: free functions, any thread. Sockets are made close-on-exec and non-blocking; those that
// connect have TCP_NODELAY.
// Does not: bind any address but the one it is given; 0.0.0.0 and :: are bound only when named by the caller.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::base {

// A name or address and a port, as a person writes it: "node7:29500", "10.0.0.1:80", "[fe80::1%eth0]:80".
struct Endpoint {
  std::string host;
  std::uint16_t port = 0;

  bool operator==(const Endpoint&) const = default;
  std::string text() const;  // IPv6 in brackets
};
// `default_port` serves where the text has none; without it a port is required.
Result<Endpoint> parse_endpoint(std::string_view text, std::optional<std::uint16_t> default_port = {});

// A numeric socket address.
class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(const sockaddr* address, socklen_t size);
  // Numeric addresses only; no name is looked up. Accepts "::1", "[::1]", "fe80::1%eth0", "127.0.0.1".
  static Result<SocketAddress> parse(std::string_view host, std::uint16_t port);

  const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const { return size_; }
  int family() const { return storage_.ss_family; }
  std::uint16_t port() const;
  SocketAddress with_port(std::uint16_t port) const;
  std::string host() const;  // numeric, without brackets
  std::string text() const;  // host:port, IPv6 in brackets
  bool is_loopback() const;
  bool is_any() const;
  bool operator==(const SocketAddress& other) const;

 private:
  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

// Looks a name up (numeric text needs no look-up). All addresses, IPv4 first only if the resolver says so.
// getaddrinfo has no deadline of its own: a slow resolver may overrun `deadline` by its own limit.
Result<std::vector<SocketAddress>> resolve(const Endpoint& endpoint, const Deadline& deadline);

struct Interface {
  std::string name;
  std::vector<SocketAddress> addresses;  // port 0
  bool up = false;
  bool loopback = false;
};
Result<std::vector<Interface>> interfaces();
// The local address that the kernel would use to reach `remote` (a connected UDP socket; nothing is sent).
Result<SocketAddress> local_address_towards(const SocketAddress& remote);

// TCP, SO_REUSEADDR, exact bind (:: is IPv6 alone). Port 0 picks one. kPortTaken names the port, and its
// owner's pid where that is visible.
Result<UniqueFd> listen_on(const SocketAddress& address, int backlog = 1024);
// Bound with SO_REUSEADDR but not listening: holds a port number so that a child can bind and listen on it.
Result<UniqueFd> hold_port(const SocketAddress& address);
Result<SocketAddress> local_address(int socket);
Result<SocketAddress> peer_address(int socket);
// Connects. kRetry goes on until the deadline, with back-off, after what passes while a server or its host is
// still starting: refused, reset, unreachable. The error names endpoint and reason.
enum class OnRefused : bool { kFail, kRetry };
Result<UniqueFd> connect_to(const SocketAddress& address, const Deadline& deadline, OnRefused on_refused);

// Small messages go out at once, and a host that vanishes without a word is noticed: after `idle` of silence
// it is asked every `interval`, three times.
struct KeepAlive {
  std::chrono::seconds idle;
  std::chrono::seconds interval;
};
void watch_connection(int socket, const KeepAlive& times);

// The process that listens on a local TCP port, if /proc shows it to us.
std::optional<int> listener_pid(std::uint16_t port);

// Blocking-style I/O on non-blocking descriptors, for handshakes and clients. EINTR is handled; SIGPIPE never
// raised. kDisconnected if the peer closes, kTimeout at the deadline; both messages start with `what`.
Status send_all(int socket, std::span<const std::byte> bytes, const Deadline& deadline,
                std::string_view what);
Status recv_all(int socket, std::span<std::byte> bytes, const Deadline& deadline, std::string_view what);

}  // namespace lockstep::base
