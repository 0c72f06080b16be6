#include "faults.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>

#include "lockstep/backend/operations.h"
#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "report.h"

namespace lockstep::chaos {
namespace {

using namespace std::chrono_literals;

constexpr rlim_t kFewDescriptors = 64;
constexpr int kWaitForWordMillis = 120'000;
constexpr std::size_t kHugeStack = std::size_t{1} << 60;
constexpr std::size_t kUsualStack = std::size_t{8} << 20;

void ignore_signal(int) {}

// A hundred signals a second that interrupt every system call, children that end, and pipes without a reader.
Status start_signals() {
  struct sigaction action {};
  action.sa_handler = ignore_signal;  // without SA_RESTART
  for (const int number : {SIGALRM, SIGCHLD, SIGPIPE}) {
    if (::sigaction(number, &action, nullptr) != 0) return Status::from_errno("sigaction", errno);
  }
  const itimerval period{{0, 10'000}, {0, 10'000}};
  if (::setitimer(ITIMER_REAL, &period, nullptr) != 0) return Status::from_errno("setitimer", errno);
  return {};
}

void send_signals() {
  ::kill(::getpid(), SIGPIPE);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
}

// memfd_create(2) is not allowed from now on.
Status forbid_memfd() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = std::size(program), .filter = program};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) != 0)
    return Status::from_errno("seccomp", errno);
  return {};
}

Status limit(int resource, rlim_t value) {
  rlimit limits{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limits) != 0)
    return Status::from_errno("getrlimit", errno);
  limits.rlim_cur = value;
  if (::setrlimit(static_cast<__rlimit_resource_t>(resource), &limits) != 0)
    return Status::from_errno("setrlimit", errno);
  return {};
}

// Every further thread would need more stack than there are addresses: a limit of processes does not bind
// root.
Status forbid_threads(std::size_t stack) {
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  const bool set =
      ::pthread_attr_setstacksize(&attributes, stack) == 0 && ::pthread_setattr_default_np(&attributes) == 0;
  ::pthread_attr_destroy(&attributes);
  return set ? Status() : Status::internal("the size of stacks cannot be set");
}

rlim_t address_space() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t pages = 0;
  file >> pages;
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Until the kernel ends it, because the memory cgroup that it is in is full; or, where there is none, the
// driver does.
[[noreturn]] void hoard() {
  while (true) {
    auto* const pages = new char[1 << 20];
    std::memset(pages, 1, 1 << 20);
    asm volatile("" : : "r"(pages) : "memory");
  }
}

// What a forked child may do with its parent's world: nothing, in good order.
Status fork_and_use(World& world) {
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = barrier(world.group()).failure() == Failure::kForked &&
                         world.new_group({world.rank()}).status().failure() == Failure::kForked;
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status == 0 ? Status() : Status::internal(cat("the forked child ", base::exit_text(status)));
}

// More shared memory than this process may have: an error here, and nothing else.
Status ask_for_too_much(const Plan& plan, World& world) {
  const auto memory = world.allocate(plan.too_much);
  report("too_much", to_json(memory.status()));
  return {};
}

Status join_again(const Plan& plan, const Environment& environment) {
  const auto began = Clock::steady().now();
  WorldOptions options{.timeout = plan.timeout, .stall_after = plan.stall_after};
  const Status second = World::join(options, environment).status();
  const Duration took = Clock::steady().now() - began;
  json said = to_json(second);
  said["took_ms"] = std::chrono::duration_cast<std::chrono::milliseconds>(took).count();
  report("second_join", said);
  return {};
}

}  // namespace

void Alarm::set(std::chrono::microseconds delay, std::function<void()> action) {
  thread_ = std::thread([delay, action = std::move(action)] {
    std::this_thread::sleep_for(delay);
    action();
  });
}

void Alarm::wait() {
  if (thread_.joinable()) thread_.join();
}

bool is_sudden(std::string_view fault) {
  return fault == "kill" || fault == "exit" || fault == "abort" || fault == "segv" || fault == "throw" ||
         fault == "stop" || fault == "hoard";
}

void inject_sudden(std::string_view fault) {
  report("inject");
  if (fault == "kill") ::kill(::getpid(), SIGKILL);
  if (fault == "exit") ::_exit(0);
  if (fault == "abort") std::abort();
  if (fault == "segv") ::raise(SIGSEGV);
  if (fault == "throw") throw std::runtime_error("a user's exception that nobody catches");
  if (fault == "hoard") hoard();
  if (fault == "stop") ::kill(::getpid(), SIGSTOP);
}

Status what_is_said(Rank rank) {
  return Status::aborted(cat("the user's hook threw: boom on ", rank), {.failure = Failure::kRemoteError});
}

Status prepare(const Plan& plan) {
  LOCKSTEP_TRY(limit(RLIMIT_CORE, 0));
  if (plan.fault == "signals") return start_signals();
  if (plan.fault == "no_memfd") return forbid_memfd();
  if (plan.fault == "few_descriptors") return limit(RLIMIT_NOFILE, kFewDescriptors);
  if (plan.fault == "few_threads") return forbid_threads(kHugeStack);
  return {};
}

Status inject_before(const Plan& plan, const Environment& environment, World& world) {
  if (plan.fault == "signals") send_signals();
  if (plan.fault == "fork") return fork_and_use(world);
  if (plan.fault == "second_join") return join_again(plan, environment);
  if (plan.fault == "no_memory") {
    report("inject");
    return limit(RLIMIT_AS, address_space() + (1U << 16));
  }
  if (plan.fault == "too_much") return ask_for_too_much(plan, world);
  if (plan.fault == "no_threads") {
    report("inject");
    return forbid_threads(kHugeStack);
  }
  if (plan.fault == "no_descriptors") {
    report("inject");
    return limit(RLIMIT_NOFILE, 3);
  }
  return {};
}

void lift_limits() {
  (void)forbid_threads(kUsualStack);
  for (const int resource : {RLIMIT_AS, RLIMIT_NOFILE}) {
    rlimit limits{};
    if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limits) == 0)
      (void)limit(resource, limits.rlim_max);
  }
}

Step step_to_disagree_on(const Plan& plan, Step step) {
  constexpr Way kWithRoot[] = {Way::kBroadcast, Way::kScatter, Way::kGather, Way::kReduce};
  constexpr Way kReducing[] = {Way::kAllReduce, Way::kReduceScatter};
  constexpr Way kForAll[] = {Way::kAllReduce, Way::kReduceScatter, Way::kAllGather, Way::kAllToAll};
  if (plan.fault == "other_root") {
    step.way = kWithRoot[plan.seed % std::size(kWithRoot)];
  } else if (plan.fault == "other_reduce_op") {
    step.way = kReducing[plan.seed % std::size(kReducing)];
  } else {
    step.way = kForAll[plan.seed % std::size(kForAll)];
  }
  step.count = std::max<std::size_t>(step.count, 8);
  step.dtype = DType::kInt32;
  step.reduce_op = ReduceOp::kSum;
  return step;
}

Step disagree(const Plan& plan, Step step, WorldSize size) {
  if (plan.fault == "other_op") step.way = Way::kBarrier;
  if (plan.fault == "other_count") step.count += 3;  // uneven parts are thirds of it
  if (plan.fault == "other_dtype") step.dtype = DType::kInt64;
  if (plan.fault == "same_size_dtype") step.dtype = DType::kFloat32;
  if (plan.fault == "other_reduce_op") step.reduce_op = ReduceOp::kMax;
  if (plan.fault == "other_root") step.root = Rank((step.root.value + 1) % size.value);
  return step;
}

bool has_a_word() {
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return ::poll(&input, 1, 0) > 0;
}

void wait_for_a_word() {
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  while (::poll(&input, 1, kWaitForWordMillis) < 0 && errno == EINTR) {
  }
}

}  // namespace lockstep::chaos
