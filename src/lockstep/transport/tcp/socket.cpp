#include "lockstep/transport/tcp/socket.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/net.h"
#include "lockstep/transport/lost.h"

namespace lockstep::transport::tcp {
namespace {

constexpr base::KeepAlive kKeepAlive{.idle = std::chrono::seconds(30), .interval = std::chrono::seconds(10)};

}  // namespace

Socket::Socket(Loop& loop, UniqueFd fd)
    : state_(new State{.descriptor = asio::posix::stream_descriptor(loop.context()),
                       .fork_guard = {},
                       .readable = nullptr,
                       .writable = nullptr}) {
  base::watch_connection(fd.get(), kKeepAlive);
  asio::error_code error;
  state_->descriptor.assign(fd.get(), error);
  if (error) return;                         // out of memory for the wait; the first send or recv fails
  state_->fork_guard.emplace(fd.release());  // the descriptor owns it now
}

void Socket::when_readable_on_loop(std::function<void()> handler) {
  wait_on_loop(asio::posix::descriptor_base::wait_read, &State::readable, std::move(handler));
}

void Socket::when_writable_on_loop(std::function<void()> handler) {
  wait_on_loop(asio::posix::descriptor_base::wait_write, &State::writable, std::move(handler));
}

void Socket::wait_on_loop(asio::posix::descriptor_base::wait_type what, Slot slot,
                          std::function<void()> handler) {
  if (state_.get()->*slot != nullptr || !state_->descriptor.is_open()) return;
  state_.get()->*slot = std::move(handler);
  state_->descriptor.async_wait(what, [state = state_, slot](const asio::error_code&) {
    // Empty once closed. An error of the wait is found again by the next send or recv.
    if (const auto run = std::exchange(state.get()->*slot, nullptr)) run();
  });
}

Result<std::size_t> Socket::send_on_loop(ByteView bytes) {
  while (true) {
    const ssize_t count = ::send(fd(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count >= 0) return static_cast<std::size_t>(count);
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return std::size_t{0};
    return connection_lost(errno);
  }
}

Result<std::size_t> Socket::recv_on_loop(ByteSpan bytes) {
  while (true) {
    const ssize_t count = ::recv(fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count > 0) return static_cast<std::size_t>(count);
    if (count == 0) return connection_lost(0);
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return std::size_t{0};
    return connection_lost(errno);
  }
}

void Socket::shutdown_send_on_loop() { ::shutdown(fd(), SHUT_WR); }

void Socket::close_on_loop() {
  state_->readable = nullptr;
  state_->writable = nullptr;
  state_->fork_guard.reset();
  asio::error_code ignored;
  state_->descriptor.close(ignored);
}

}  // namespace lockstep::transport::tcp
