#include "lockstep/store/tcp_listener.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <exception>
#include <utility>

#include "lockstep/base/net.h"
#include "lockstep/base/status.h"
#include "lockstep/base/text.h"
#include "lockstep/store/tcp_local.h"

namespace lockstep::store {
namespace {

constexpr int kAcceptsPerTurn = 16;
constexpr auto kRest = std::chrono::milliseconds(100);
constexpr int kManyRests = 3;  // then it is no passing shortage

// Errors that concern one connection which is gone already, not the listening socket.
bool is_of_the_connection(int error) {
  return error == ECONNABORTED || error == EINTR || error == EPROTO || error == EPERM || error == ENETDOWN ||
         error == EHOSTUNREACH || error == ENETUNREACH || error == ENOPROTOOPT || error == EHOSTDOWN;
}

struct Accepted {
  base::UniqueFd socket;
  std::unique_ptr<base::ForkGuard> guard;
  int error = 0;  // why there is no socket
};

Accepted accept_guarded(int listener, sockaddr_storage& address, socklen_t& size) {
  const base::ForkLock until_it_is_guarded;
  Accepted accepted;
  accepted.socket.reset(
      accept4(listener, reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!accepted.socket) {
    accepted.error = errno;
    return accepted;
  }
  accepted.guard = std::make_unique<base::ForkGuard>(accepted.socket.get());
  return accepted;
}

}  // namespace

Listener::Listener(asio::io_context& loop, base::UniqueFd socket, Greeter& greeter,
                   base::RateLimit& log_limit, std::string name)
    : socket_(loop, socket.get()),
      fork_guard_(socket.get()),
      rest_(loop),
      greeter_(greeter),
      log_limit_(log_limit),
      name_(std::move(name)) {
  static_cast<void>(socket.release());  // socket_ owns it now
}

void Listener::wait_on_loop() {
  if (waiting_) return;
  waiting_ = true;
  socket_.async_wait(asio::posix::stream_descriptor::wait_read,
                     [this, alive = std::weak_ptr(alive_)](const asio::error_code& error) {
                       if (error || alive.expired()) return;  // closed: the server is going
                       waiting_ = false;
                       accept_on_loop();
                     });
}

void Listener::accept_on_loop() {
  // A connection that is refused at once makes room, and brings us here while the loop below still runs.
  if (accepting_) return;
  accepting_ = true;
  const int error = accept_some_on_loop();
  accepting_ = false;
  if (error == EBUSY) return;  // the greeter calls again when it has room
  if (error != 0) return rest_on_loop(error);
  wait_on_loop();
}

int Listener::accept_some_on_loop() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    if (greeter_.full()) return EBUSY;
    sockaddr_storage storage{};
    socklen_t size = sizeof(storage);
    try {
      Accepted accepted = accept_guarded(socket_.native_handle(), storage, size);
      if (!accepted.socket) {
        if (accepted.error == EAGAIN || accepted.error == EWOULDBLOCK) return 0;
        if (is_of_the_connection(accepted.error)) continue;
        return accepted.error;
      }
      rests_ = 0;
      greet_on_loop(std::move(accepted.socket), std::move(accepted.guard),
                    base::SocketAddress(reinterpret_cast<const sockaddr*>(&storage), size));
    } catch (const std::exception&) {
      return ENOMEM;  // for the connection's state, here or in the kernel
    }
  }
  return 0;
}

void Listener::greet_on_loop(base::UniqueFd socket, std::unique_ptr<base::ForkGuard> guard,
                             const base::SocketAddress& address) {
  if (address.family() != AF_UNIX) {
    return greeter_.greet_on_loop(std::move(socket), std::move(guard),
                                  {.host = address.host(), .text = address.text()});
  }
  const auto peer = local_peer(socket.get());
  if (!peer.ok()) return;
  const PeerName name{.host = peer->text(), .text = peer->text(), .local = LocalSocket::kOn};
  if (!peer->trusted()) return greeter_.log_rejection(name, "it belongs to another user");
  greeter_.greet_on_loop(std::move(socket), std::move(guard), name);
}

void Listener::rest_on_loop(int error) {
  const Status why = Status::from_errno(cat(name_, ": no connection can be accepted for now"), error);
  if (log_limit_.allow(cat("accept on ", name_))) greeter_.warn(why.message());
  if (++rests_ == kManyRests) greeter_.report_cannot_accept(why);
  rest_.expires_after(kRest);
  rest_.async_wait([this, alive = std::weak_ptr(alive_)](const asio::error_code& stopped) {
    if (!stopped && !alive.expired()) accept_on_loop();
  });
}

}  // namespace lockstep::store
