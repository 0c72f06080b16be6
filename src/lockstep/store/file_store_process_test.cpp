// FileStore between processes, some of which are killed. The children are forked while this process has one
// thread, and leave by _exit.
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/store/file_store.h"
#include "lockstep/testing/status_matchers.h"
#include "lockstep/testing/store_conformance.h"
#include "lockstep/testing/temporary_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Le;

// Seen by the children too.
struct Shared {
  std::atomic<int> acknowledged = 0;
};

class FileStoreProcesses : public ::testing::Test {
 protected:
  FileStoreProcesses() {
    void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    LOCKSTEP_CHECK(memory != MAP_FAILED, "no shared memory");
    shared_ = new (memory) Shared;
  }
  ~FileStoreProcesses() override { ::munmap(shared_, sizeof(Shared)); }

  std::unique_ptr<FileStore> open() const { return std::move(FileStore::open(path_)).value(); }

  // A child that runs `body` with a handle of its own; its exit code is 0 if `body` was ok.
  pid_t fork_child(const std::function<Status(FileStore&)>& body) const {
    LOCKSTEP_CHECK(base::thread_count() == 1, "a process with threads must not be forked");
    const pid_t child = ::fork();
    if (child != 0) return child;
    Result<std::unique_ptr<FileStore>> store = FileStore::open(path_);
    const Status status = store.ok() ? body(**store) : store.status();
    if (!status.ok()) ::dprintf(STDERR_FILENO, "child: %s\n", status.text().c_str());
    ::_exit(status.ok() ? 0 : 1);
  }
  // `count` of them at once; all must end well.
  void run_children(int count, const std::function<Status(FileStore&, int child)>& body) const {
    std::vector<pid_t> children(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) {
      children[static_cast<std::size_t>(i)] = fork_child([&](FileStore& store) { return body(store, i); });
    }
    for (const pid_t child : children) EXPECT_EQ(wait_for(child), 0);
  }
  static int wait_for(pid_t child) {
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.path("store");
  Shared* shared_ = nullptr;
};

TEST_F(FileStoreProcesses, EightProcessesLoseNoAdd) {
  constexpr int kProcesses = 8, kAdds = 200;
  run_children(kProcesses, [](FileStore& store, int) -> Status {
    for (int n = 0; n < kAdds; ++n) LOCKSTEP_TRY(store.add("n", 1).status());
    return {};
  });
  EXPECT_THAT(open()->add("n", 0), IsOkAnd(kProcesses * kAdds));
}

TEST_F(FileStoreProcesses, ProcessesMeetAtABarrier) {
  constexpr int kProcesses = 4, kRounds = 10;
  run_children(kProcesses, [this](FileStore& store, int) -> Status {
    for (int round = 1; round <= kRounds; ++round) {
      ++shared_->acknowledged;
      LOCKSTEP_TRY(store.barrier("barrier", WorldSize(kProcesses)));
      if (shared_->acknowledged < round * kProcesses) return Status::internal("passed before all had come");
    }
    return {};
  });
}

// At every kill the store holds each step that the child was told of, and at most one more.
TEST_F(FileStoreProcesses, TwoHundredKilledWritersLeaveEveryStepWholeOrUndone) {
  constexpr int kKills = 200;
  const std::unique_ptr<FileStore> store = open();
  ASSERT_OK(store->multi_set(std::vector<std::string>{"n", "blob"},
                             std::vector<Buffer>{buffer_of("0"), Buffer(1, std::byte{0})}));
  std::mt19937 random(20261115);
  std::int64_t counted = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    shared_->acknowledged = 0;
    // Large enough to be cut in the middle, and to bring about a compaction every few steps.
    const std::size_t size = 1 + random() % (kill % 2 == 0 ? 400'000 : 100);
    const pid_t child = fork_child([&](FileStore& own) -> Status {
      for (;;) {
        LOCKSTEP_TRY(own.add("n", 1).status());
        ++shared_->acknowledged;
        LOCKSTEP_TRY(own.set("blob", Buffer(size, static_cast<std::byte>(kill))));
      }
    });
    const int wanted = static_cast<int>(random() % 6);
    while (shared_->acknowledged < wanted) ::sched_yield();
    for (volatile unsigned spins = random() % 200'000; spins > 0;) spins = spins - 1;
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_TRUE(WIFSIGNALED(wait_for(child)));

    ASSERT_OK_AND_ASSIGN(const std::int64_t now, store->add("n", 0));
    const int told = shared_->acknowledged;
    EXPECT_THAT(now - counted, AllOf(Ge(told), Le(told + 1))) << "kill " << kill;
    counted = now;
    ASSERT_OK_AND_ASSIGN(const Buffer blob, store->get("blob"));
    EXPECT_TRUE(std::all_of(blob.begin(), blob.end(), [&](std::byte b) { return b == blob[0]; })) << kill;
  }
  // What the survivor knows is what is in the file.
  EXPECT_THAT(open()->add("n", 0), IsOkAnd(counted));
  EXPECT_THAT(open()->num_keys(), IsOkAnd(2));
}

TEST_F(FileStoreProcesses, CompactionUnderLoadLosesNothing) {
  constexpr int kProcesses = 4, kRounds = 60;
  run_children(kProcesses, [](FileStore& store, int i) -> Status {
    for (int round = 0; round < kRounds; ++round) {
      const Buffer value(60'000, static_cast<std::byte>(round));
      LOCKSTEP_TRY(store.set(cat("value", i), value));
      LOCKSTEP_TRY(store.add("n", 1).status());
      LOCKSTEP_TRY(store.queue_push(cat("queue", i), bytes_of(cat(round))));
      LOCKSTEP_ASSIGN(const Buffer back, store.get(cat("value", i)));
      if (back != value) return Status::internal("a value was lost");
      if (round % 2 == 1) {
        LOCKSTEP_ASSIGN(const Buffer item, store.queue_pop(cat("queue", i)));
        if (text_of(item) != cat(round / 2)) return Status::internal("an item was lost");
      }
    }
    return {};
  });
  const std::unique_ptr<FileStore> store = open();
  EXPECT_THAT(store->add("n", 0), IsOkAnd(kProcesses * kRounds));
  for (int i = 0; i < kProcesses; ++i) {
    EXPECT_THAT(store->queue_len(cat("queue", i)), IsOkAnd(kRounds / 2));
    EXPECT_THAT(store->get(cat("value", i)), IsOkAnd(::testing::SizeIs(60'000)));
  }
  // 14 MiB were written.
  EXPECT_LT(std::filesystem::file_size(path_), 3U << 20);
}

TEST_F(FileStoreProcesses, AForkedChildMustOpenItsOwn) {
  const std::unique_ptr<FileStore> store = open();
  ASSERT_OK(store->set("key", {}));
  const pid_t child = fork_child([&](FileStore& own) -> Status {
    if (store->set("key", {}).failure() != Failure::kForked) return Status::internal("the old one was used");
    if (store->clone().status().failure() != Failure::kForked) return Status::internal("it was cloned");
    return own.set("key", bytes_of("child"));
  });
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_THAT(store->get("key"), holds("child"));
}

// A child that lives on must not keep the lock of a parent that was killed while it wrote.
TEST_F(FileStoreProcesses, AKilledParentsChildDoesNotKeepTheLock) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t parent = fork_child([&](FileStore&) -> Status {
    store::LogFile file(path_);
    LOCKSTEP_TRY(file.begin(store::LockKind::kExclusive).status());
    if (::fork() == 0) {
      ::close(pipe[1]);
      char byte = 0;
      ::_exit(static_cast<int>(::read(pipe[0], &byte, 1)));  // until the test closes its end
    }
    ++shared_->acknowledged;
    for (;;) ::pause();
  });
  while (shared_->acknowledged == 0) ::sched_yield();
  ASSERT_EQ(::kill(parent, SIGKILL), 0);
  wait_for(parent);
  EXPECT_OK(open()->set("key", {}, Clock::steady().in(std::chrono::seconds(60))));
  ::close(pipe[0]);
  ::close(pipe[1]);
}

}  // namespace
}  // namespace lockstep::testing
