// Waits for descriptors and calls their handlers: epoll(7) with Deadlines.
//
// Thread safety: one thread. A handler may watch and forget any descriptor, its own included.
#pragma once

#include <functional>
#include <unordered_map>

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::launch {

class Poller {
 public:
  enum class Ready { kRead, kWrite };
  using Handler = std::function<void()>;

  static Result<Poller> make();

  // Until forget(), `handler` runs whenever `fd` is ready (level-triggered; an error or a hang-up counts).
  // The descriptor must be forgotten before it is closed. kUnsupported for a file that is always ready.
  Status watch(int fd, Ready ready, Handler handler);
  // Nothing happens if it is not watched.
  void forget(int fd);
  // Waits until something is ready or `deadline`, and runs the handlers. Returns early on a signal.
  Status wait(const Deadline& deadline);

 private:
  explicit Poller(UniqueFd epoll) : epoll_(std::move(epoll)) {}
  UniqueFd epoll_;
  std::unordered_map<int, Handler> handlers_;
};

}  // namespace lockstep::launch
