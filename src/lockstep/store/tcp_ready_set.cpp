#include "lockstep/store/tcp_ready_set.h"
#include "lockstep/store/logger.h"

#include <sys/epoll.h>

#include <array>
#include <new>
#include <system_error>
#include <utility>

namespace lockstep::store {
namespace {

constexpr int kBatch = 256;
// Then timers and new connections have their turn.
constexpr int kBatchesPerTurn = 4;

constexpr std::uint32_t kReceiving = EPOLLIN | EPOLLRDHUP | EPOLLET;
constexpr std::uint32_t kEnded = EPOLLRDHUP | EPOLLHUP | EPOLLERR;

int new_epoll() {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) throw std::system_error(errno, std::system_category(), "epoll_create1");
  return epoll;
}

}  // namespace

ReadySet::ReadySet(asio::io_context& loop, std::function<void()> after_batch)
    : epoll_(loop, new_epoll()), after_batch_(std::move(after_batch)) {
  wait_on_loop();
}

bool ReadySet::add(const Conduit& conduit, Watcher& watcher) {
  epoll_event event{.events = kReceiving, .data = {.ptr = &watcher}};
  const int epoll = epoll_.native_handle();
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, conduit.receiving(), &event) != 0) return false;
  if (conduit.is_socket()) return true;
  event.events = EPOLLET;  // errors only, until arm_sending()
  return epoll_ctl(epoll, EPOLL_CTL_ADD, conduit.sending(), &event) == 0;
}

void ReadySet::rearm_receiving(const Conduit& conduit, Watcher& watcher) {
  epoll_event event{.events = kReceiving, .data = {.ptr = &watcher}};
  epoll_ctl(epoll_.native_handle(), EPOLL_CTL_MOD, conduit.receiving(), &event);
}

void ReadySet::arm_sending(const Conduit& conduit, Watcher& watcher) {
  const std::uint32_t receiving = conduit.is_socket() ? kReceiving : 0U;
  epoll_event event{.events = receiving | EPOLLOUT | EPOLLET, .data = {.ptr = &watcher}};
  epoll_ctl(epoll_.native_handle(), EPOLL_CTL_MOD, conduit.sending(), &event);
}

void ReadySet::remove(const Conduit& conduit) {
  epoll_ctl(epoll_.native_handle(), EPOLL_CTL_DEL, conduit.receiving(), nullptr);
  if (!conduit.is_socket()) epoll_ctl(epoll_.native_handle(), EPOLL_CTL_DEL, conduit.sending(), nullptr);
}

void ReadySet::wait_on_loop() {
  epoll_.async_wait(asio::posix::stream_descriptor::wait_read, [this](const asio::error_code& error) {
    if (error) return;  // closed: the server is going
    try {
      handle_on_loop();
    } catch (const std::bad_alloc&) {
      kLog.error("out of memory; some answers may be lost");
    }
    wait_on_loop();
  });
}

void ReadySet::handle_on_loop() {
  std::array<epoll_event, kBatch> events;
  for (int i = 0; i < kBatchesPerTurn; ++i) {
    const int count = epoll_wait(epoll_.native_handle(), events.data(), kBatch, 0);
    if (count <= 0) return;
    for (int k = 0; k < count; ++k) {
      const epoll_event& event = events[static_cast<std::size_t>(k)];
      auto* const watcher = static_cast<Watcher*>(event.data.ptr);
      // One edge may tell of the last bytes and of the end.
      if ((event.events & kEnded) != 0) watcher->has_ended_on_loop();
      if ((event.events & EPOLLOUT) != 0) watcher->can_send_on_loop();
      if ((event.events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) watcher->can_receive_on_loop();
    }
    after_batch_();
  }
}

}  // namespace lockstep::store
