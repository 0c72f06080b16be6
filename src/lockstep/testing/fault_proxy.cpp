#include "lockstep/testing/fault_proxy.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace lockstep::testing {
namespace {

Deadline forever() { return Clock::steady().in(std::chrono::hours(1)); }

// Half-closed sockets are left to the other direction.
void cut(int socket, FaultProxy::Cut how) {
  if (how == FaultProxy::Cut::kReset) {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    // Disconnecting resets the connection, and leaves the descriptor to its owner.
    const sockaddr nowhere{.sa_family = AF_UNSPEC, .sa_data = {}};
    ::connect(socket, &nowhere, sizeof(nowhere));
  }
  ::shutdown(socket, SHUT_RDWR);
}

bool send_slices(int socket, ByteSpan bytes, std::size_t slice) {
  const std::size_t step = slice == 0 ? bytes.size() : slice;
  for (std::size_t at = 0; at < bytes.size(); at += step) {
    const ByteView part = bytes.subspan(at, std::min(step, bytes.size() - at));
    if (!base::send_all(socket, part, forever(), "proxy").ok()) return false;
  }
  return true;
}

}  // namespace

FaultProxy::FaultProxy(const base::Endpoint& target)
    : target_(target),
      listening_(base::listen_on(base::SocketAddress::parse("127.0.0.1", 0).value()).value()) {
  const auto address = base::local_address(listening_.get()).value();
  endpoint_ = {.host = address.host(), .port = address.port()};
  accepting_ = std::thread([this] { serve(); });
}

FaultProxy::~FaultProxy() {
  stopping_ = true;
  ::shutdown(listening_.get(), SHUT_RDWR);  // wakes the accepting thread
  accepting_.join();
  for (Connection& connection : connections_) {
    cut(connection.client.get(), Cut::kFin);
    cut(connection.server.get(), Cut::kFin);
  }
  for (Connection& connection : connections_) {
    connection.to_server.join();
    connection.to_client.join();
  }
}

void FaultProxy::set(const Faults& faults) {
  const base::MutexLock lock(mutex_);
  faults_ = faults;
}

void FaultProxy::forget_finished() {
  std::erase_if(connections_, [](Connection& connection) {
    if (connection.running > 0) return false;
    connection.to_server.join();
    connection.to_client.join();
    return true;
  });
}

void FaultProxy::serve() {
  while (!stopping_) {
    forget_finished();
    pollfd ready{.fd = listening_.get(), .events = POLLIN, .revents = 0};
    poll(&ready, 1, -1);
    base::UniqueFd client(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client) continue;
    const int on = 1;
    setsockopt(client.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    const auto address = base::SocketAddress::parse(target_.host, target_.port).value();
    auto server = base::connect_to(address, forever(), base::OnRefused::kFail);
    if (!server.ok()) continue;  // the client is cut off
    Faults faults;
    {
      const base::MutexLock lock(mutex_);
      faults = faults_;
    }
    Connection& connection = connections_.emplace_back();
    connection.client = std::move(client);
    connection.server = std::move(server).value();
    const auto run = [&connection, faults](Direction direction) {
      pump(connection, direction, faults);
      --connection.running;
    };
    connection.to_server = std::thread(run, Direction::kToServer);
    connection.to_client = std::thread(run, Direction::kToClient);
  }
}

void FaultProxy::pump(Connection& connection, Direction direction, const Faults& faults) {
  const bool to_server = direction == Direction::kToServer;
  const int from = to_server ? connection.client.get() : connection.server.get();
  const int to = to_server ? connection.server.get() : connection.client.get();
  const bool damaged = direction == faults.direction;
  std::array<std::byte, 16384> buffer;
  std::uint64_t passed = 0;
  while (true) {
    pollfd ready{.fd = from, .events = POLLIN, .revents = 0};
    poll(&ready, 1, -1);
    const ssize_t count = ::recv(from, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (count <= 0) break;
    ByteSpan bytes = ByteSpan(buffer).first(static_cast<std::size_t>(count));
    const bool cut_here = damaged && faults.cut_after && passed + bytes.size() >= *faults.cut_after;
    if (cut_here) bytes = bytes.first(*faults.cut_after - passed);
    if (damaged && faults.flip_bit && *faults.flip_bit / 8 >= passed &&
        *faults.flip_bit / 8 < passed + bytes.size()) {
      bytes[*faults.flip_bit / 8 - passed] ^= static_cast<std::byte>(1U << (*faults.flip_bit % 8));
    }
    passed += bytes.size();
    if (!send_slices(to, bytes, faults.slice) || cut_here) {
      cut(to, faults.cut);
      cut(from, faults.cut);
      return;
    }
  }
  ::shutdown(to, SHUT_WR);
}

}  // namespace lockstep::testing
