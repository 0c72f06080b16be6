#include "lockstep/base/fork_guard.h"

#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <latch>
#include <memory>
#include <thread>

#include "lockstep/base/unique_fd.h"

namespace lockstep::base {
namespace {

struct Pair {
  UniqueFd here;
  UniqueFd there;
};

Pair socket_pair() {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// Runs `body` in a forked child and returns its exit code.
template <typename Body>
int in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ForkGuard, ChildKnowsAndParentDoesNotMind) {
  Pair pair = socket_pair();
  ForkGuard guard(pair.here.get());
  EXPECT_FALSE(guard.in_child());
  EXPECT_EQ(in_child([&] { return guard.in_child() ? 0 : 1; }), 0);
  EXPECT_FALSE(guard.in_child());
  char byte = 'x';
  EXPECT_EQ(write(pair.here.get(), &byte, 1), 1);
  EXPECT_EQ(read(pair.there.get(), &byte, 1), 1);
}

TEST(ForkGuard, SocketInChildIsNotTheParentsAnyMore) {
  Pair pair = socket_pair();
  ForkGuard guard(pair.here.get());
  char byte = 'x';
  ASSERT_EQ(write(pair.there.get(), &byte, 1), 1);
  // /dev/null is at its end at once; the socket would give the byte.
  EXPECT_EQ(in_child([&] { return static_cast<int>(read(pair.here.get(), &byte, 1)); }), 0);
  EXPECT_EQ(read(pair.here.get(), &byte, 1), 1);
}

TEST(ForkGuard, PeerSeesTheEndAlthoughAChildLives) {
  Pair pair = socket_pair();
  auto guard = std::make_unique<ForkGuard>(pair.here.get());
  int gate[2];
  ASSERT_EQ(pipe(gate), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte;
    close(gate[1]);
    _exit(read(gate[0], &byte, 1) == 0 ? 0 : 1);  // until the parent lets go
  }
  guard.reset();
  pair.here.reset();
  char byte;
  EXPECT_EQ(read(pair.there.get(), &byte, 1), 0);
  close(gate[0]);
  close(gate[1]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(ForkGuard, AChildMakesGuardsOfItsOwnEvenIfForkedUnderALock) {
  Pair pair = socket_pair();
  const ForkGuard guard(pair.here.get());
  const auto make_another = [&] {
    const ForkLock lock;
    const ForkGuard other(pair.there.get());
    return other.in_child() ? 1 : 0;
  };
  EXPECT_EQ(in_child(make_another), 0);
  const ForkLock lock;
  EXPECT_EQ(in_child(make_another), 0);
}

TEST(ForkGuard, AForkWaitsForTheLocksOfOtherThreadsAndTheyForEachOtherNot) {
  std::latch both_hold(2);
  // Both live until the child has ended: the thread sanitizer takes one that has finished for one forgotten
  // there.
  std::latch child_has_ended(1);
  std::atomic<bool> released = false;
  std::thread first([&] {
    {
      const ForkLock lock;
      both_hold.arrive_and_wait();  // for ever, if one lock kept the other out
    }
    child_has_ended.wait();
  });
  std::atomic<bool> holds = false;
  std::thread second([&] {
    {
      const ForkLock lock;
      both_hold.arrive_and_wait();
      holds = true;
      holds.notify_one();
      // The fork is under way or about to be; it must not be over before this is.
      for (int i = 0; i < 1000; ++i) std::this_thread::yield();
      released = true;
    }
    child_has_ended.wait();
  });
  holds.wait(false);
  EXPECT_EQ(in_child([&] { return released ? 0 : 1; }), 0);
  child_has_ended.count_down();
  first.join();
  second.join();
}

TEST(ForkGuard, ADestroyedGuardLeavesItsNumberAlone) {
  Pair pair = socket_pair();
  { ForkGuard guard(pair.here.get()); }
  char byte = 'x';
  ASSERT_EQ(write(pair.there.get(), &byte, 1), 1);
  EXPECT_EQ(in_child([&] { return static_cast<int>(read(pair.here.get(), &byte, 1)); }), 1);
}

}  // namespace
}  // namespace lockstep::base
