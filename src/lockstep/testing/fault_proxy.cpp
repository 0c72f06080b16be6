#include "lockstep/testing/fault_proxy.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace lockstep::testing {
namespace {

using Faults = FaultProxy::Faults;
using Direction = FaultProxy::Direction;

// One direction of a connection.
class Flow {
 public:
  Flow(int from, int to, const Faults& faults) : from_(from), to_(to), faults_(faults) {}

  bool wants_to_recv() const { return !ended_ && pending().empty(); }
  bool wants_to_send() const { return !pending().empty(); }
  bool ended() const { return ended_ && pending().empty(); }
  // Everything before the cut has been passed on.
  bool cut() const { return cut_ && pending().empty(); }

  void recv() {
    const ssize_t count = ::recv(from_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    size_ = count > 0 ? static_cast<std::size_t>(count) : 0;
    sent_ = 0;
    ended_ = count <= 0;
    damage();
    if (ended_) ::shutdown(to_, SHUT_WR);
  }

  void send() {
    const std::size_t limit = faults_.slice == 0 ? pending().size() : faults_.slice;
    const ByteView part = pending().first(std::min(limit, pending().size()));
    const ssize_t count = ::send(to_, part.data(), part.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count < 0) {
      size_ = sent_ = 0;
      ended_ = true;
      return;
    }
    sent_ += static_cast<std::size_t>(count);
  }

 private:
  ByteView pending() const { return ByteView(buffer_).first(size_).subspan(sent_); }

  void damage() {
    if (faults_.cut_after && passed_ + size_ >= *faults_.cut_after) {
      size_ = *faults_.cut_after - passed_;
      cut_ = true;
    }
    if (faults_.flip_bit && *faults_.flip_bit / 8 >= passed_ && *faults_.flip_bit / 8 < passed_ + size_) {
      buffer_[*faults_.flip_bit / 8 - passed_] ^= static_cast<std::byte>(1U << (*faults_.flip_bit % 8));
    }
    passed_ += size_;
  }

  const int from_;
  const int to_;
  const Faults faults_;
  std::array<std::byte, 16384> buffer_;  // [sent_, size_) is to be passed on
  std::size_t size_ = 0;
  std::size_t sent_ = 0;
  std::uint64_t passed_ = 0;
  bool ended_ = false;
  bool cut_ = false;
};

void set_option(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof(value));
}

void end(int socket, FaultProxy::Cut how) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  if (how == FaultProxy::Cut::kReset) {
    setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  } else {
    ::shutdown(socket, SHUT_WR);
  }
}

}  // namespace

FaultProxy::FaultProxy(const base::Endpoint& target)
    : target_(target),
      listening_(base::listen_on(base::SocketAddress::parse("127.0.0.1", 0).value()).value()),
      stop_(eventfd(0, EFD_CLOEXEC)) {
  const auto address = base::local_address(listening_.get()).value();
  endpoint_ = {.host = address.host(), .port = address.port()};
  accepting_ = std::thread([this] { accept_all(); });
}

FaultProxy::~FaultProxy() {
  eventfd_write(stop_.get(), 1);
  accepting_.join();
  for (Connection& connection : connections_) connection.thread.join();
}

void FaultProxy::set(const Faults& faults) {
  const base::MutexLock lock(mutex_);
  faults_ = faults;
}

void FaultProxy::forget_finished() {
  std::erase_if(connections_, [](Connection& connection) {
    if (!connection.finished) return false;
    connection.thread.join();
    return true;
  });
}

void FaultProxy::accept_all() {
  while (true) {
    std::array<pollfd, 2> ready{pollfd{.fd = listening_.get(), .events = POLLIN, .revents = 0},
                                pollfd{.fd = stop_.get(), .events = POLLIN, .revents = 0}};
    poll(ready.data(), ready.size(), -1);
    if (ready[1].revents != 0) return;
    forget_finished();
    base::UniqueFd client(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client) continue;
    set_option(client.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    const auto address = base::SocketAddress::parse(target_.host, target_.port).value();
    auto server =
        base::connect_to(address, Clock::steady().in(std::chrono::minutes(1)), base::OnRefused::kFail);
    if (!server.ok()) continue;  // the client is cut off
    Faults faults;
    {
      const base::MutexLock lock(mutex_);
      faults = faults_;
    }
    Connection& connection = connections_.emplace_back();
    connection.thread = std::thread(
        [this, &connection, faults, from = std::move(client), to = std::move(server).value()]() mutable {
          forward(std::move(from), std::move(to), faults);
          connection.finished = true;
        });
  }
}

void FaultProxy::forward(base::UniqueFd client, base::UniqueFd server, const Faults& faults) const {
  const bool to_server = faults.direction == Direction::kToServer;
  Flow there(client.get(), server.get(), to_server ? faults : Faults{});
  Flow back(server.get(), client.get(), to_server ? Faults{} : faults);
  while (!there.ended() || !back.ended()) {
    const auto events = [](const Flow& in, const Flow& out) {
      return static_cast<short>((in.wants_to_recv() ? POLLIN : 0) | (out.wants_to_send() ? POLLOUT : 0));
    };
    std::array<pollfd, 3> ready{pollfd{.fd = client.get(), .events = events(there, back), .revents = 0},
                                pollfd{.fd = server.get(), .events = events(back, there), .revents = 0},
                                pollfd{.fd = stop_.get(), .events = POLLIN, .revents = 0}};
    // A side that has ended would be reported for ever.
    for (pollfd& side : ready) {
      if (side.events == 0) side.fd = -1;
    }
    poll(ready.data(), ready.size(), -1);
    if (ready[2].revents != 0) return;
    if (ready[0].revents != 0 && there.wants_to_recv()) there.recv();
    if (ready[1].revents != 0 && back.wants_to_recv()) back.recv();
    if (there.wants_to_send()) there.send();
    if (back.wants_to_send()) back.send();
    if (there.cut() || back.cut()) {
      end(client.get(), faults.cut);
      return end(server.get(), faults.cut);
    }
  }
}

}  // namespace lockstep::testing
