// The walk of docs/architecture.md: one gradient goes from backward() to shared memory, or to the wire,
// through seven files, in their order. Read off the stacks of a real pass: where the operation is begun, and
// where it waits for the other rank.
#include <dlfcn.h>
#include <execinfo.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <torch/nn/modules/linear.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/tensor/observer.h"
#include "lockstep/tensor/tensor_test_support.h"
#include "lockstep/testing/sanitized.h"

namespace lockstep {
namespace {

using Stack = std::vector<void*>;  // the innermost call is the first

Stack stack() {
  std::array<void*, 128> frames;
  const int found = ::backtrace(frames.data(), frames.size());
  return Stack(frames.begin(), frames.begin() + found);
}

// What a thread was doing when it went to sleep for another rank.
struct Sleeps {
  std::mutex mutex;
  std::vector<Stack> stacks;
  std::atomic<bool> in_futex = false;  // is watched for
  std::atomic<bool> in_poll = false;
  std::atomic<bool> without_memory = false;  // this process gets no shared memory
  std::atomic<bool>* seen = nullptr;         // tells the other rank that it may come
};
Sleeps& sleeps() {
  static Sleeps all;
  return all;
}

void note_sleep() {
  Sleeps& all = sleeps();
  const std::scoped_lock lock(all.mutex);
  all.stacks.push_back(stack());
  all.seen->store(true);
}

// The files of this program in a stack, the outermost first: "ddp/backward_pass.cpp".
std::vector<std::string> files_of(const Stack& frames) {
  Dl_info own;
  if (::dladdr(reinterpret_cast<void*>(&note_sleep), &own) == 0) return {};
  std::ostringstream command;
  command << "addr2line -i -e " << own.dli_fname << std::hex;
  for (void* const frame : frames) {
    Dl_info at;
    if (::dladdr(frame, &at) != 0 && at.dli_fbase == own.dli_fbase)
      command << " 0x"
              << reinterpret_cast<std::uintptr_t>(frame) - reinterpret_cast<std::uintptr_t>(at.dli_fbase) - 1;
  }
  std::vector<std::string> files;
  FILE* const output = ::popen(command.str().c_str(), "r");
  std::array<char, 1024> line;
  while (output != nullptr && std::fgets(line.data(), line.size(), output) != nullptr) {
    std::string text = line.data();
    const auto begin = text.find("src/lockstep/");
    if (begin == std::string::npos) continue;
    text = text.substr(begin + sizeof("src/lockstep/") - 1);
    text = text.substr(0, text.find(':'));
    if (files.empty() || files.front() != text) files.insert(files.begin(), text);
  }
  if (output != nullptr) ::pclose(output);
  return files;
}

// Whether each of `steps` begins the name of a file, in this order.
bool pass_in_order(const std::vector<std::string>& files, const std::vector<std::string>& steps) {
  std::size_t next = 0;
  for (const std::string& file : files) {
    if (next < steps.size() && file.starts_with(steps[next])) ++next;
  }
  return next == steps.size();
}

// What the two ranks tell the test.
struct Shared {
  bool tcp = false;
  std::atomic<bool> sleeping = false;  // rank 0 is: rank 1 may come
  std::atomic<bool> in_order = false;
};

void pass(int rank, Shared& shared) {
  torch::nn::Linear net(64, 64);
  DistributedDataParallel model(net);
  const at::Tensor loss = model(torch::ones({2, 64})).sum();
  if (rank == 1) {
    while (!shared.sleeping.load()) std::this_thread::yield();
    return loss.backward();
  }
  Stack begun;  // the first, which is the gradients'
  const auto watching = observe([&](const OperationEvent& event) {
    if (event.phase == OperationPhase::kPre && begun.empty()) begun = stack();
  });
  sleeps().seen = &shared.sleeping;
  std::atomic<bool>& watched = shared.tcp ? sleeps().in_poll : sleeps().in_futex;
  watched = true;
  loss.backward();
  watched = false;
  shared.sleeping = true;

  const std::vector<std::string> first = files_of(begun);
  bool in_order = pass_in_order(
      first, {"ddp/data_parallel.cpp", "ddp/backward_pass.cpp", "ddp/comm_hook.cpp", "tensor/"});
  if (!in_order) std::cerr << "begun by " << ::testing::PrintToString(first) << "\n";
  const std::scoped_lock lock(sleeps().mutex);
  bool reached = false;
  for (const Stack& each : sleeps().stacks) {
    const std::vector<std::string> rest = files_of(each);
    const char* const last = shared.tcp ? "transport/link/" : "transport/shm/";
    reached = reached || pass_in_order(rest, {"backend/native/", "collective/", last});
    if (!reached) std::cerr << "asleep in " << ::testing::PrintToString(rest) << "\n";
    if (reached) break;
  }
  shared.in_order = in_order && reached;
}

// A thread that sleeps for something else may let rank 1 come too early to be waited for: then once more.
bool passes_in_order(bool tcp) {
  constexpr int kAttempts = 5;
  void* const memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  bool in_order = false;
  for (int attempt = 0; attempt < kAttempts && !in_order; ++attempt) {
    auto* const shared = new (memory) Shared;
    shared->tcp = tcp;
    const Status status = testing::ProcessWorld(2, std::chrono::minutes(1)).run([&](const SpawnedRank& rank) {
      sleeps().without_memory = tcp;
      const WorldOptions options{.without_shared_memory = backend::WithoutSharedMemory::kUseTcp};
      const auto world = init_process_group({.world = options, .environment = rank.environment});
      pass(rank.rank.value, *shared);
    });
    if (!status.ok()) std::cerr << status.message() << "\n";
    in_order = shared->in_order;
  }
  ::munmap(memory, sizeof(Shared));
  return in_order;
}

TEST(Walk, OneGradientPassesSevenFilesInOrderToSharedMemory) {
  if (testing::kSanitized) GTEST_SKIP() << "the sanitizer's own frames are in between";
  EXPECT_TRUE(passes_in_order(false));
}
TEST(Walk, OneGradientPassesSevenFilesInOrderToTheWire) {
  if (testing::kSanitized) GTEST_SKIP() << "the sanitizer's own frames are in between";
  EXPECT_TRUE(passes_in_order(true));
}

}  // namespace

void note_sleep_in_futex() {
  if (sleeps().in_futex) note_sleep();
}
void note_sleep_in_poll() {
  if (sleeps().in_poll) note_sleep();
}
bool is_without_memory() { return sleeps().without_memory; }

}  // namespace lockstep

// In front of libc's: transport/shm/wait.cpp sleeps by it.
extern "C" long syscall(long number, ...) noexcept {
  using Real = long (*)(long, long, long, long, long, long, long);
  // No guarded static: what guards it may come here.
  static std::atomic<Real> real = nullptr;
  if (real == nullptr) real = reinterpret_cast<Real>(::dlsym(RTLD_NEXT, "syscall"));
  std::va_list list;
  va_start(list, number);
  std::array<long, 6> words;
  for (long& word : words) word = va_arg(list, long);
  va_end(list);
  if (number == SYS_futex && (words[1] & FUTEX_CMD_MASK) == FUTEX_WAIT) lockstep::note_sleep_in_futex();
  return real.load()(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

// transport/link/links.cpp sleeps by it.
extern "C" int poll(pollfd* entries, nfds_t count, int millis) {
  using Real = int (*)(pollfd*, nfds_t, int);
  static std::atomic<Real> real = nullptr;
  if (real == nullptr) real = reinterpret_cast<Real>(::dlsym(RTLD_NEXT, "poll"));
  lockstep::note_sleep_in_poll();
  return real.load()(entries, count, millis);
}

extern "C" int memfd_create(const char* name, unsigned flags) noexcept {
  using Real = int (*)(const char*, unsigned);
  static std::atomic<Real> real = nullptr;
  if (real == nullptr) real = reinterpret_cast<Real>(::dlsym(RTLD_NEXT, "memfd_create"));
  if (!lockstep::is_without_memory()) return real.load()(name, flags);
  errno = EPERM;
  return -1;
}
