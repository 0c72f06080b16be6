// What becomes of sockets when a process forks.
//
// A forked child shares its parent's open sockets. Peers then do not see the parent's death while the child
// lives, and two processes that use one connection tear its bytes. So a socket that must stay the parent's is
// held by a ForkGuard: in the child it is replaced by /dev/null before fork() returns there, under the same
// number, and whoever owns it can tell by in_child() that it must not be used.
//
// Thread safety: any thread. fork() itself waits until no guard is being made or destroyed.
// Does not: act on vfork or posix_spawn, after which the child may only exec; sockets are close-on-exec
// anyway.
#pragma once

#include <cstdint>

namespace lockstep::base {

class ForkGuard {
 public:
  explicit ForkGuard(int socket);
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  // True in a child that was forked after this was made. Costs one load.
  bool in_child() const;

 private:
  const int socket_;
  const std::uint64_t generation_;
};

// While one exists, a fork() by another thread waits: for making a socket and its guard in one step. Short.
// Any number of threads may hold one at a time, and a thread may hold several.
class ForkLock {
 public:
  ForkLock();
  ~ForkLock();
  ForkLock(const ForkLock&) = delete;
  ForkLock& operator=(const ForkLock&) = delete;
};

// How often this process and its ancestors have forked since the library was first used.
std::uint64_t fork_generation();

}  // namespace lockstep::base
