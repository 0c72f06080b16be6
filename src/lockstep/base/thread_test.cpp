#include "lockstep/base/thread.h"

#include <gmock/gmock.h>
#include <pthread.h>

#include <array>
#include <csignal>

#include "lockstep/testing/status_matchers.h"
#include "lockstep/testing/thread_limit.h"

namespace lockstep::base {
namespace {

using ::testing::HasSubstr;

TEST(StartThread, RunsTheBodyUnderItsNameWithEverySignalBlocked) {
  std::array<char, 16> name{};
  sigset_t blocked;
  sigemptyset(&blocked);
  ASSERT_OK_AND_ASSIGN(std::thread thread, start_thread("lockstep-test", [&] {
                         pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
                         // The name is set by whoever started it, perhaps only now.
                         while (std::string_view(name.data()) != "lockstep-test") {
                           pthread_getname_np(pthread_self(), name.data(), name.size());
                         }
                       }));
  thread.join();
  for (const int signal : {SIGINT, SIGTERM, SIGPIPE, SIGUSR1, SIGCHLD}) {
    EXPECT_EQ(sigismember(&blocked, signal), 1) << signal;
  }
}

TEST(StartThread, LeavesTheSignalsOfItsCallerAlone) {
  sigset_t before;
  sigset_t after;
  pthread_sigmask(SIG_BLOCK, nullptr, &before);
  ASSERT_OK_AND_ASSIGN(std::thread thread, start_thread("lockstep-test", [] {}));
  thread.join();
  pthread_sigmask(SIG_BLOCK, nullptr, &after);
  for (int signal = 1; signal < NSIG; ++signal) {
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal)) << signal;
  }
}

TEST(StartThread, WhereNoneCanBeHadTheErrorSaysSo) {
  const testing::NoMoreThreads limit;
  const auto thread = start_thread("lockstep-test", [] {});
  ASSERT_FALSE(thread.ok());
  EXPECT_THAT(thread.status().message(), HasSubstr("lockstep-test cannot be started"));
  EXPECT_EQ(thread.status().failure(), Failure::kNoMemory);
}

TEST(Abandon, LeavesNoThreadAndTheOldOneAlone) {
  std::thread thread([] {});
  const pthread_t handle = thread.native_handle();
  abandon(thread);
  EXPECT_FALSE(thread.joinable());
  EXPECT_EQ(pthread_join(handle, nullptr), 0);
  abandon(thread);
  EXPECT_FALSE(thread.joinable());
}

}  // namespace
}  // namespace lockstep::base
