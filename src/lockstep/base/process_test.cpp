#include "lockstep/base/process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <latch>
#include <thread>

namespace lockstep::base {
namespace {

using ::testing::HasSubstr;

// A child that runs `body` and leaves with its answer.
template <typename Body>
pid_t start_child(Body body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  return child;
}

int wait_for(pid_t child) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

int wait_for_ever() {
  while (true) pause();
}

TEST(Pidfd, BecomesReadableWhenTheProcessEnds) {
  const pid_t child = start_child(wait_for_ever);
  auto fd = open_pidfd(child);
  ASSERT_TRUE(fd.ok()) << fd.status().text();
  EXPECT_NE(fcntl(fd->get(), F_GETFD) & FD_CLOEXEC, 0);
  pollfd entry{.fd = fd->get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&entry, 1, 0), 0);
  EXPECT_TRUE(send_signal(fd->get(), SIGKILL).ok());
  EXPECT_EQ(poll(&entry, 1, 20'000), 1);
  EXPECT_EQ(exit_text(wait_for(child)), "killed by SIGKILL (signal 9)");
  const Status status = send_signal(fd->get(), SIGTERM);
  EXPECT_EQ(status.failure(), Failure::kPeerDied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("SIGTERM"));
}

TEST(Pidfd, AProcessThatIsGoneIsNamed) {
  const pid_t child = start_child([] { return 0; });
  wait_for(child);
  const auto fd = open_pidfd(child);
  EXPECT_EQ(fd.status().failure(), Failure::kPeerDied);
  EXPECT_EQ(fd.status().cause().pid, child);
}

TEST(SignalName, ReadsBackByEveryName) {
  EXPECT_EQ(signal_name(SIGKILL), "SIGKILL");
  EXPECT_EQ(signal_name(64), "signal 64");
  EXPECT_EQ(signal_name(-3), "signal -3");
  for (const char* text : {"9", "KILL", "SIGKILL", "sigkill", "Kill"})
    EXPECT_EQ(parse_signal(text), SIGKILL) << text;
  EXPECT_EQ(parse_signal("64"), 64);
  for (const char* text : {"", "0", "-1", "65", "SIG", "KILLS", "9x", "signal 64", "SIGSIGKILL"})
    EXPECT_EQ(parse_signal(text), std::nullopt) << text;
  for (int signal = 1; signal < 32; ++signal) EXPECT_EQ(parse_signal(signal_name(signal)), signal);
}

TEST(ExitText, SaysHowAProcessLeft) {
  EXPECT_EQ(exit_text(wait_for(start_child([] { return 0; }))), "exited with code 0");
  EXPECT_EQ(exit_text(wait_for(start_child([] { return 3; }))), "exited with code 3");
  const auto die_by = [](int signal) {
    return start_child([signal] {
      const rlimit none{.rlim_cur = 0, .rlim_max = 0};
      setrlimit(RLIMIT_CORE, &none);
      ::signal(signal, SIG_DFL);
      raise(signal);
      return 0;
    });
  };
  EXPECT_EQ(exit_text(wait_for(die_by(SIGTERM))), "killed by SIGTERM (signal 15)");
  EXPECT_EQ(exit_text(wait_for(die_by(50))), "killed by signal 50");
  constexpr int kCoreFlag = 0x80;  // as the kernel sets it
  EXPECT_EQ(exit_text(SIGSEGV | kCoreFlag), "killed by SIGSEGV (signal 11), core dumped");
}

TEST(ThisHost, IsTheSameForEveryProcessOfIt) {
  const auto host = this_host();
  ASSERT_TRUE(host.ok()) << host.status().text();
  EXPECT_EQ(host->boot_id.size(), 36U);
  EXPECT_NE(host->net_namespace, 0U);
  EXPECT_EQ(host->name, host_name());
  const pid_t child = start_child([&] {
    const auto other = this_host();
    return other.ok() && host->same_host(*other) ? 0 : 1;
  });
  EXPECT_EQ(wait_for(child), 0);
}

TEST(HostIdentity, DiffersByBootAndByEachNamespace) {
  const HostIdentity host{
      .name = "a", .boot_id = "b", .net_namespace = 1, .ipc_namespace = 2, .pid_namespace = 3};
  HostIdentity other = host;
  other.name = "another name of the same host";
  EXPECT_TRUE(host.same_host(other));
  EXPECT_NE(host, other);
  for (const auto field :
       {&HostIdentity::net_namespace, &HostIdentity::ipc_namespace, &HostIdentity::pid_namespace}) {
    other = host;
    other.*field = 9;
    EXPECT_FALSE(host.same_host(other));
  }
  other = host;
  other.boot_id = "c";
  EXPECT_FALSE(host.same_host(other));
  EXPECT_EQ(host.text(), "a (boot b, namespaces net 1, ipc 2, pid 3)");
}

TEST(UsableCores, FollowsTheAffinity) {
  EXPECT_GE(usable_cores(), 1);
  const pid_t child = start_child([] {
    const int cpu = sched_getcpu();
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof(one), &one) != 0) return 1;
    return usable_cores() == 1 && allowed_cpus() == std::vector{cpu} ? 0 : 1;
  });
  EXPECT_EQ(wait_for(child), 0);
}

TEST(MemoryLimits, AreThoseOfThisMachine) {
  const auto limits = memory_limits();
  ASSERT_TRUE(limits.ok()) << limits.status().text();
  EXPECT_GT(limits->total, Bytes::mib(16));
  EXPECT_LE(limits->available, limits->total);
  EXPECT_GT(limits->available, Bytes{0});
}

TEST(ThreadCount, CountsThreads) {
  EXPECT_GE(thread_count(), 1);
  std::latch finish(1);
  const auto wait_for_the_end = [&] { finish.wait(); };
  // Counted from the first thread on: a sanitizer adds one of its own with it.
  std::thread first(wait_for_the_end);
  const int with_one = thread_count();
  EXPECT_GE(with_one, 2);
  std::thread second(wait_for_the_end);
  EXPECT_EQ(thread_count(), with_one + 1);
  finish.count_down();
  first.join();
  second.join();
}

TEST(AbsolutePath, IsFromTheRootAndLeavesLinksToTheKernel) {
  const std::string here = std::filesystem::current_path();
  EXPECT_EQ(*absolute_path("./a"), here + "/a");
  EXPECT_EQ(*absolute_path("/a//b/."), "/a/b/");
  EXPECT_EQ(*absolute_path("link/../a"), here + "/link/../a");
}

TEST(AbsolutePath, InAFolderThatWasRemovedOnlyARelativeOneIsAnError) {
  const std::string folder = ::testing::TempDir() + "/absolute_path_test";
  const pid_t child = start_child([&] {
    if (mkdir(folder.c_str(), 0700) != 0 || chdir(folder.c_str()) != 0 || rmdir(folder.c_str()) != 0)
      return 1;
    if (!absolute_path("/a").ok()) return 2;
    const auto relative = absolute_path("a");
    return !relative.ok() && relative.status().message().find("\"a\" is relative") == 0 ? 0 : 3;
  });
  EXPECT_EQ(wait_for(child), 0);
}

TEST(IsTraced, SeesATracer) {
  int told[2], ask[2];
  ASSERT_EQ(pipe2(told, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(ask, O_CLOEXEC), 0);
  const pid_t child = start_child([&] {
    prctl(PR_SET_PTRACER, getppid());  // for systems that let only ancestors who are named trace
    char answer = is_traced() ? 'y' : 'n', byte = 0;
    if (write(told[1], &answer, 1) != 1 || read(ask[0], &byte, 1) != 1) return 1;
    answer = is_traced() ? 'y' : 'n';
    return write(told[1], &answer, 1) == 1 ? 0 : 1;
  });
  char answer = 0;
  ASSERT_EQ(read(told[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'n');
  ASSERT_EQ(ptrace(PTRACE_SEIZE, child, nullptr, nullptr), 0);
  ASSERT_EQ(write(ask[1], "?", 1), 1);
  ASSERT_EQ(read(told[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  EXPECT_EQ(wait_for(child), 0);
  for (const int fd : {told[0], told[1], ask[0], ask[1]}) close(fd);
}

}  // namespace
}  // namespace lockstep::base
