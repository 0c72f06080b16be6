#include "lockstep/store/liveness.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/store/member.h"

namespace lockstep::store {
namespace {

TEST(Liveness, ThisProcessLivesAndAnOldStartTimeDoesNot) {
  const base::HostIdentity here{"h", "boot", 1, 2, 3};
  Member self;
  self.host = here;
  self.pid = ::getpid();
  self.start_time = process_start_time(self.pid).value_or(0);
  EXPECT_GT(self.start_time, 0U);
  EXPECT_FALSE(is_certainly_gone(self, here));
  self.start_time -= 1;
  EXPECT_TRUE(is_certainly_gone(self, here)) << "the pid was used again";
  self.host.boot_id = "another boot";
  EXPECT_FALSE(is_certainly_gone(self, here)) << "of another host nothing is certain";
  self.host = here;
  self.host.pid_namespace = 4;
  EXPECT_FALSE(is_certainly_gone(self, here));
}

TEST(Liveness, AChildThatHasEndedIsGoneAlsoBeforeItIsWaitedFor) {
  const base::HostIdentity here{"h", "boot", 1, 2, 3};
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte;
    ::close(pipe_ends[1]);
    ::_exit(::read(pipe_ends[0], &byte, 1) == 1 ? 0 : 1);
  }
  Member member;
  member.host = here;
  member.pid = child;
  member.start_time = process_start_time(child).value_or(0);
  EXPECT_FALSE(is_certainly_gone(member, here));
  ASSERT_EQ(::write(pipe_ends[1], "x", 1), 1);
  siginfo_t info;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(is_certainly_gone(member, here)) << "a zombie";
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED), 0);
  EXPECT_TRUE(is_certainly_gone(member, here));
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
}

}  // namespace
}  // namespace lockstep::store
