#include "lockstep/base/net.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "lockstep/base/crypto.h"
#include "lockstep/base/text.h"

namespace lockstep::base {
namespace {

using namespace std::chrono_literals;

constexpr Duration kFirstBackOff = 1ms;
constexpr Duration kLongestBackOff = 250ms;

Result<UniqueFd> new_socket(int family, int type) {
  UniqueFd fd(socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return Status::from_errno("cannot make a socket", errno);
  return fd;
}

// Until the socket is ready, or the deadline. True if ready.
Result<bool> wait_ready(int socket, short events, const Deadline& deadline) {
  while (true) {
    pollfd entry{.fd = socket, .events = events, .revents = 0};
    const int count = poll(&entry, 1, deadline.poll_millis());
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) return Status::from_errno("poll failed", errno);
    if (deadline.expired()) return false;
  }
}

// Sleeps between two tries: `back_off` less up to a half by chance, so that many clients do not come as one.
void pause_before_retry(Duration back_off, const Deadline& deadline) {
  std::array<std::byte, 1> chance{};
  random_bytes(chance);
  const Duration pause = back_off - back_off * std::to_integer<int>(chance[0]) / 512;
  const Deadline until = deadline.at_most(pause);
  while (!until.expired()) poll(nullptr, 0, until.poll_millis());
}

// The kernel's list of listening sockets: /proc/net/tcp or tcp6.
struct Listener {
  SocketAddress address;
  std::uint64_t inode = 0;
};

// "0100007F:1F90": the words of the address as the machine holds them, then the port.
std::optional<SocketAddress> read_proc_address(std::string_view text, int family) {
  const std::size_t words = family == AF_INET ? 1 : 4;
  if (text.size() != words * 8 + 5 || text[words * 8] != ':') return std::nullopt;
  const auto hex_number = [](std::string_view digits) {
    std::uint32_t value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    return value;
  };
  std::array<std::uint32_t, 4> raw{};
  for (std::size_t i = 0; i < words; ++i) raw[i] = hex_number(text.substr(i * 8, 8));
  const auto port = htons(static_cast<std::uint16_t>(hex_number(text.substr(words * 8 + 1))));
  if (family == AF_INET) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = port;
    v4.sin_addr.s_addr = raw[0];
    return SocketAddress(reinterpret_cast<const sockaddr*>(&v4), sizeof(v4));
  }
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = port;
  std::memcpy(&v6.sin6_addr, raw.data(), sizeof(v6.sin6_addr));
  return SocketAddress(reinterpret_cast<const sockaddr*>(&v6), sizeof(v6));
}

void append_listeners(const char* path, int family, std::vector<Listener>& out) {
  constexpr std::string_view kListen = "0A";
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);  // the heading
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout;
    Listener listener;
    fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >>
        listener.inode;
    const auto address = read_proc_address(local, family);
    if (!fields || state != kListen || !address) continue;
    listener.address = *address;
    out.push_back(listener);
  }
}

// The process that has one of these sockets open; only processes that we may look into are seen.
std::optional<int> owner_of_sockets(const std::set<std::string>& names) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const auto pid = parse_integer<int>(entry.path().filename().native());
    if (!pid) continue;
    std::error_code ignored;  // processes come and go, and some are not ours to see
    for (const auto& fd : std::filesystem::directory_iterator(entry.path() / "fd", ignored)) {
      const auto target = std::filesystem::read_symlink(fd.path(), ignored);
      if (!ignored && names.contains(target.native())) return pid;
    }
  }
  return std::nullopt;
}

// The owner of a listener on `port` for which `concerns` holds.
template <typename Predicate>
std::optional<int> find_listener_pid(std::uint16_t port, Predicate concerns) {
  std::vector<Listener> listeners;
  append_listeners("/proc/net/tcp", AF_INET, listeners);
  append_listeners("/proc/net/tcp6", AF_INET6, listeners);
  std::set<std::string> names;
  for (const Listener& listener : listeners) {
    if (listener.address.port() == port && concerns(listener.address))
      names.insert(cat("socket:[", listener.inode, "]"));
  }
  if (names.empty()) return std::nullopt;
  return owner_of_sockets(names);
}

std::string process_name(int pid) {
  std::ifstream file(cat("/proc/", pid, "/comm"));
  std::string name;
  std::getline(file, name);
  return name.empty() ? "unnamed" : name;
}

Status port_taken(const SocketAddress& address) {
  const auto pid = find_listener_pid(address.port(), [&](const SocketAddress& other) {
    return other.is_any() || address.is_any() || other.host() == address.host();
  });
  std::string owner = "a process that this user cannot see";
  if (pid)
    owner = *pid == getpid() ? "this process itself" : cat("pid ", *pid, " (", process_name(*pid), ")");
  return Status::invalid(cat("port ", address.port(), " on ", address.host(), " is taken by ", owner),
                         {.failure = Failure::kPortTaken, .pid = pid});
}

Status bind_failed(const SocketAddress& address, int error) {
  if (error == EADDRINUSE) return port_taken(address);
  if (error == EADDRNOTAVAIL) {
    return Status::invalid(
        cat("cannot listen on ", address.text(), ": ", address.host(), " is not an address of this host"));
  }
  if (error == EACCES) {
    return Status::invalid(cat("cannot listen on ", address.text(), ": ports below 1024 need a privilege"));
  }
  return Status::from_errno(cat("cannot listen on ", address.text()), error);
}

Result<UniqueFd> bound_socket(const SocketAddress& address) {
  LOCKSTEP_ASSIGN(UniqueFd fd, new_socket(address.family(), SOCK_STREAM));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // :: means IPv6 alone: IPv4 is bound only when it is named.
  if (address.family() == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
  if (bind(fd.get(), address.data(), address.size()) != 0) return bind_failed(address, errno);
  return fd;
}

// One try. 0 or the error number.
Result<int> try_connect(int socket, const SocketAddress& address, const Deadline& deadline) {
  if (connect(socket, address.data(), address.size()) == 0) return 0;
  if (errno != EINPROGRESS && errno != EINTR) return errno;
  LOCKSTEP_ASSIGN(const bool ready, wait_ready(socket, POLLOUT, deadline));
  if (!ready) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

// A socket that connects to a free port of its own host may meet itself (both ends call at once).
bool is_connected_to_itself(int socket) {
  const auto local = local_address(socket);
  const auto peer = peer_address(socket);
  return local.ok() && peer.ok() && *local == *peer;
}

// What passes when a server or its host is still starting.
bool is_transient(int error) {
  switch (error) {
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case ETIMEDOUT:
      return true;
    default:
      return false;
  }
}

Status connect_failed(const SocketAddress& address, int error) {
  if (error == ECONNREFUSED) {
    return Status::disconnected(cat("nobody listens on ", address.text(), " (connection refused)"),
                                {.failure = Failure::kNobodyListens, .host = address.host()});
  }
  const Cause cause{.failure = Failure::kPeerUnreachable, .host = address.host()};
  if (is_transient(error)) {
    return Status::disconnected(cat("cannot connect to ", address.text(), ": ", ::strerrordesc_np(error)),
                                cause);
  }
  return Status::from_errno(cat("cannot connect to ", address.text()), error);
}

Result<SocketAddress> address_by(int (*ask)(int, sockaddr*, socklen_t*), int socket, std::string_view what) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  if (ask(socket, reinterpret_cast<sockaddr*>(&storage), &size) != 0)
    return Status::from_errno(cat("cannot ask a socket for ", what), errno);
  return SocketAddress(reinterpret_cast<const sockaddr*>(&storage), size);
}

}  // namespace

Result<SocketAddress> local_address_towards(const SocketAddress& remote) {
  LOCKSTEP_ASSIGN(const UniqueFd fd, new_socket(remote.family(), SOCK_DGRAM));
  const SocketAddress target = remote.port() == 0 ? remote.with_port(9) : remote;
  if (connect(fd.get(), target.data(), target.size()) != 0)
    return Status::from_errno(cat("this host has no route to ", remote.host()), errno);
  LOCKSTEP_ASSIGN(const SocketAddress local, local_address(fd.get()));
  return local.with_port(0);
}

Result<UniqueFd> listen_on(const SocketAddress& address, int backlog) {
  LOCKSTEP_ASSIGN(UniqueFd fd, bound_socket(address));
  if (listen(fd.get(), backlog) != 0) return bind_failed(address, errno);
  return fd;
}

Result<UniqueFd> hold_port(const SocketAddress& address) { return bound_socket(address); }

Result<SocketAddress> local_address(int socket) {
  return address_by(&getsockname, socket, "its own address");
}
Result<SocketAddress> peer_address(int socket) {
  return address_by(&getpeername, socket, "its peer's address");
}

Result<UniqueFd> connect_to(const SocketAddress& address, const Deadline& deadline, OnRefused on_refused) {
  const TimePoint start = deadline.clock().now();
  Duration back_off = kFirstBackOff;
  while (true) {
    LOCKSTEP_ASSIGN(UniqueFd fd, new_socket(address.family(), SOCK_STREAM));
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    LOCKSTEP_ASSIGN(int error, try_connect(fd.get(), address, deadline));
    if (error == 0 && is_connected_to_itself(fd.get())) error = ECONNREFUSED;
    if (error == 0) return fd;
    fd.reset();
    const bool again = on_refused == OnRefused::kRetry && is_transient(error);
    if (!again && !(error == ETIMEDOUT && deadline.expired())) return connect_failed(address, error);
    if (again) pause_before_retry(back_off, deadline);
    back_off = std::min(2 * back_off, kLongestBackOff);
    if (deadline.expired()) {
      const Duration waited = deadline.clock().now() - start;
      return Status::timeout(
          cat("cannot connect to ", address.text(), " within ", waited, ": ",
              error == ETIMEDOUT ? "there is no answer" : connect_failed(address, error).message()),
          {.failure = Failure::kPeerUnreachable, .host = address.host()});
    }
  }
}

void watch_connection(int socket, const KeepAlive& times) {
  const auto set = [socket](int level, int option, int value) {
    setsockopt(socket, level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, static_cast<int>(times.idle.count()));
  set(IPPROTO_TCP, TCP_KEEPINTVL, static_cast<int>(times.interval.count()));
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

std::optional<int> listener_pid(std::uint16_t port) {
  return find_listener_pid(port, [](const SocketAddress&) { return true; });
}

namespace {
// What send_all and recv_all share: `step` moves some bytes and returns how many, or -1 with errno.
template <typename Step>
Status transfer(int socket, std::size_t size, short event, const Deadline& deadline, std::string_view what,
                std::string_view verb, Step step) {
  std::size_t done = 0;
  while (done < size) {
    const ssize_t count = step(done);
    if (count > 0) {
      done += static_cast<std::size_t>(count);
      continue;
    }
    const auto progress = [&] { return cat(" after ", done, " of ", size, " bytes were ", verb); };
    if (count == 0) return Status::disconnected(cat(what, ": the peer closed the connection", progress()));
    if (errno == EINTR) continue;
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) {
      const int error = errno;
      return Status::disconnected(
          cat(what, ": the connection broke", progress(), " (", ::strerrordesc_np(error), ")"));
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK) return Status::from_errno(std::string(what), errno);
    LOCKSTEP_ASSIGN(const bool ready, wait_ready(socket, event, deadline));
    if (!ready) return Status::timeout(cat(what, ": the time ran out", progress()));
  }
  return {};
}
}  // namespace

Status send_all(int socket, std::span<const std::byte> bytes, const Deadline& deadline,
                std::string_view what) {
  return transfer(socket, bytes.size(), POLLOUT, deadline, what, "sent", [&](std::size_t done) {
    return send(socket, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
  });
}

Status recv_all(int socket, std::span<std::byte> bytes, const Deadline& deadline, std::string_view what) {
  return transfer(socket, bytes.size(), POLLIN, deadline, what, "received", [&](std::size_t done) {
    return recv(socket, bytes.data() + done, bytes.size() - done, MSG_DONTWAIT);
  });
}

}  // namespace lockstep::base
