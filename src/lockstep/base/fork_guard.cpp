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

// How many threads hold a ForkLock, or kForking while one of them forks or waits to. Shared, so that those
// who make sockets do not wait for each other. Not a mutex of the library's: those with shared holders belong
// to threads' numbers, which are others in the child.
constexpr int kForking = 1 << 30;
std::atomic<int> gate{0};
// Of this thread; only the first enters, only the last leaves.
alignas(8) thread_local int holds = 0;  // mold 1.10 misplaces less aligned ones

void enter() {
  int seen = gate.load(std::memory_order_relaxed);
  while (true) {
    if ((seen & kForking) != 0) {
      gate.wait(seen, std::memory_order_relaxed);
      seen = gate.load(std::memory_order_relaxed);
    } else if (gate.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire)) {
      return;
    }
  }
}

void leave() {
  if (gate.fetch_sub(1, std::memory_order_release) == kForking + 1) gate.notify_all();
}

// Until this thread is the only one that forks, and nobody holds a ForkLock.
void close_gate() {
  int seen = gate.load(std::memory_order_relaxed);
  while ((seen & kForking) != 0 || !gate.compare_exchange_weak(seen, seen | kForking)) {
    if ((seen & kForking) != 0) {
      gate.wait(seen, std::memory_order_relaxed);
      seen = gate.load(std::memory_order_relaxed);
    }
  }
  while ((seen = gate.load(std::memory_order_acquire)) != kForking) gate.wait(seen);
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

// Whoever holds a ForkLock may fork: its share is given up for that long.
void before_fork() {
  if (holds > 0) leave();
  close_gate();
  guarded().mutex.lock();
}

void open_gate() {
  guarded().mutex.unlock();
  gate.store(holds > 0 ? 1 : 0, std::memory_order_release);
  gate.notify_all();
}

void after_fork_in_child() {
  generation.fetch_add(1, std::memory_order_relaxed);
  for (const int socket : guarded().sockets) replace_by_null(socket);
  guarded().sockets.clear();
  open_gate();
}

void install_handlers() {
  static const bool installed = [] {
    LOCKSTEP_CHECK(pthread_atfork(before_fork, open_gate, after_fork_in_child) == 0,
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
  if (holds++ == 0) enter();
}

ForkLock::~ForkLock() {
  if (--holds == 0) leave();
}

ForkGuard::ForkGuard(int socket) : socket_(socket), generation_(fork_generation()) {
  const std::lock_guard lock(guarded().mutex);
  guarded().sockets.push_back(socket);
}

ForkGuard::~ForkGuard() {
  if (in_child()) return;
  const std::lock_guard lock(guarded().mutex);
  auto& sockets = guarded().sockets;
  const auto found = std::find(sockets.begin(), sockets.end(), socket_);
  if (found == sockets.end()) return;
  *found = sockets.back();
  sockets.pop_back();
}

bool ForkGuard::in_child() const { return generation.load(std::memory_order_relaxed) != generation_; }

}  // namespace lockstep::base
