#include "lockstep/launch/memory_sharing.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "lockstep/testing/status_matchers.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using ::lockstep::testing::IsOkAnd;
using ::lockstep::testing::StatusIs;
using ::testing::Gt;

TEST(MemorySharing, TwoProcessesSeeEachOthersPages) {
  EXPECT_THAT(prove_memory_sharing(Clock::steady().in(30s)), IsOkAnd(Gt(Duration::zero())));
}

TEST(MemorySharing, LeavesNoChildBehind) {
  ASSERT_OK(prove_memory_sharing(Clock::steady().in(30s)));
  EXPECT_THAT(prove_memory_sharing(Clock::steady().in(0s)), StatusIs(Code::kTimeout));
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(MemorySharing, SaysWhatIsMissingWhenDescriptorsRunOut) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 3, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const Result<Duration> result = prove_memory_sharing(Clock::steady().in(30s));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(result.ok());
  EXPECT_THAT(std::string(result.status().message()), ::testing::HasSubstr("memfd_create"));
}

}  // namespace
}  // namespace lockstep::launch
