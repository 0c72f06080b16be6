#include "lockstep/launch/poller.h"

#include <sys/epoll.h>

#include <array>
#include <cerrno>

namespace lockstep::launch {

Result<Poller> Poller::make() {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return Status::from_errno("the launcher cannot make an epoll descriptor", errno);
  return Poller(std::move(epoll));
}

Status Poller::watch(int fd, Ready ready, Handler handler) {
  epoll_event event{};
  event.events = ready == Ready::kRead ? EPOLLIN : EPOLLOUT;
  event.data.fd = fd;
  const int operation = handlers_.contains(fd) ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  if (epoll_ctl(epoll_.get(), operation, fd, &event) != 0) {
    if (errno == EPERM) return Status::unsupported("a regular file is always ready and cannot be waited for");
    return Status::from_errno("the launcher cannot wait for a descriptor", errno);
  }
  handlers_.insert_or_assign(fd, std::move(handler));
  return {};
}

void Poller::forget(int fd) {
  if (handlers_.erase(fd) == 0) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

Status Poller::wait(const Deadline& deadline) {
  std::array<epoll_event, 64> events{};
  const int count =
      epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), deadline.poll_millis());
  if (count < 0) {
    return errno == EINTR ? Status()
                          : Status::from_errno("the launcher cannot wait for its descriptors", errno);
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    // An earlier handler may have forgotten it; a copy, because a handler may forget itself.
    const auto found = handlers_.find(events[i].data.fd);
    if (found == handlers_.end()) continue;
    const Handler handler = found->second;
    handler();
  }
  return {};
}

}  // namespace lockstep::launch
