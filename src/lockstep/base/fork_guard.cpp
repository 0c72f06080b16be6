#include "lockstep/base/fork_guard.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "lockstep/base/check.h"

namespace lockstep::base {
namespace {

// pthread_atfork takes plain functions, so what they act on is static. Never destroyed: a guard may outlive
// every static object.
struct Guarded {
  std::mutex mutex;
  std::vector<int> sockets;
};
Guarded& guarded() {
  static Guarded& instance = *new Guarded;
  return instance;
}
std::atomic<std::uint64_t> generation{0};

// A guard is made under a ForkLock, and whoever holds one may fork. Not a recursive mutex: that belongs to a
// thread's number, which is another one in the child.
thread_local int holds = 0;
void lock() {
  if (holds++ == 0) guarded().mutex.lock();
}
void unlock() {
  if (--holds == 0) guarded().mutex.unlock();
}

// Only async-signal-safe calls: other threads of the parent may have held any lock.
void replace_by_null(int socket) {
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null >= 0) {
    dup3(null, socket, O_CLOEXEC);
    close(null);
    return;
  }
  // Out of descriptors: the socket's own number is free once it is closed, and lowest or not, /dev/null must
  // take some number.
  close(socket);
  const int other = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (other >= 0 && other != socket) {
    dup3(other, socket, O_CLOEXEC);
    close(other);
  }
}

void before_fork() { lock(); }
void after_fork_in_parent() { unlock(); }
void after_fork_in_child() {
  generation.fetch_add(1, std::memory_order_relaxed);
  for (const int socket : guarded().sockets) replace_by_null(socket);
  guarded().sockets.clear();
  unlock();
}

void install_handlers() {
  static const bool installed = [] {
    LOCKSTEP_CHECK(pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0,
                   "pthread_atfork has no memory");
    return true;
  }();
  static_cast<void>(installed);
}

}  // namespace

std::uint64_t fork_generation() {
  install_handlers();
  return generation.load(std::memory_order_relaxed);
}

ForkLock::ForkLock() {
  install_handlers();
  lock();
}

ForkLock::~ForkLock() { unlock(); }

ForkGuard::ForkGuard(int socket) : socket_(socket), generation_(fork_generation()) {
  const ForkLock no_fork;
  guarded().sockets.push_back(socket);
}

ForkGuard::~ForkGuard() {
  if (in_child()) return;
  const ForkLock no_fork;
  auto& sockets = guarded().sockets;
  const auto found = std::find(sockets.begin(), sockets.end(), socket_);
  if (found == sockets.end()) return;
  *found = sockets.back();
  sockets.pop_back();
}

bool ForkGuard::in_child() const { return generation.load(std::memory_order_relaxed) != generation_; }

}  // namespace lockstep::base
