// Messages between ranks of one world: whoever waits or does not, and whoever dies or stops in the middle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include "lockstep/backend/native/world_test_support.h"
#include "lockstep/backend/operations.h"

namespace lockstep::backend {
namespace {

using namespace std::chrono_literals;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::ProcessWorld;
using testing::StatusIs;

constexpr std::size_t kLarge = 3U << 20;
// Around what goes at once, what a pipe holds, and what is copied in pieces.
constexpr std::size_t kSizes[] = {0, 1, 4096, (64U << 10) - 1, 64U << 10, (64U << 10) + 1, (1U << 20) + 1};

std::byte mark(int from, std::size_t number) {
  return static_cast<std::byte>(static_cast<std::size_t>(from) * 31 + number * 7 + 1);
}
bool all_bytes_are(ByteView bytes, std::byte value) {
  return std::ranges::all_of(bytes, [value](std::byte byte) { return byte == value; });
}

enum class Where : bool { kForeign, kResident };
SharedMemory memory(World& world, Where where, std::size_t size) {
  if (where == Where::kResident) return world.allocate(Bytes{size}).value();
  const auto bytes = std::make_shared<Buffer>(size);
  return {.bytes = *bytes, .owner = bytes};
}

// Both ranks send and receive messages of all sizes at once, on several threads with a tag each.
void carry_many_messages(MemoryChecks checks) {
  EXPECT_OK(run_ranks(2, [checks](const SpawnedRank& rank) {
    const auto world = join(rank, {.stall_after = kNeverStalled, .memory_checks = checks});
    ASSERT_TRUE(world);
    Backend& group = world->group();
    const int own = rank.rank.value;
    const Rank peer{1 - own};
    std::atomic<int> wrong = 0;
    const auto exchange = [&](std::uint64_t tag) {
      for (int round = 0; round < 3; ++round) {
        std::vector<SharedMemory> out;
        std::vector<Buffer> in;
        std::vector<WorkPtr> works;
        works.reserve(2 * std::size(kSizes));
        for (const std::size_t size : kSizes) {
          out.push_back(memory(*world, tag % 2 == 0 ? Where::kForeign : Where::kResident, size));
          std::ranges::fill(out.back().bytes, mark(own, tag + size));
          in.emplace_back(size);
        }
        for (Buffer& buffer : in) works.push_back(group.recv(peer, tag, buffer));
        for (const SharedMemory& buffer : out) works.push_back(group.send(peer, tag, buffer.bytes));
        for (const WorkPtr& work : works) {
          if (!work->wait().ok()) ++wrong;
        }
        for (const Buffer& buffer : in) {
          if (!all_bytes_are(buffer, mark(peer.value, tag + buffer.size()))) ++wrong;
        }
      }
    };
    std::vector<std::thread> threads;
    for (std::uint64_t tag = 0; tag < 4; ++tag) threads.emplace_back(exchange, tag);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
    ASSERT_OK(barrier(group));
  }));
}

TEST(Mail, CarriesManyMessagesBothWaysOnSeveralThreads) { carry_many_messages(MemoryChecks::kOff); }

TEST(Mail, CarriesMessagesThatAreChecked) { carry_many_messages(MemoryChecks::kOn); }

// Neither side waits for its message: each is in a barrier, or in code of its own.
TEST(Mail, MovesMessagesThatNobodyWaitsFor) {
  for (const Where where : {Where::kForeign, Where::kResident}) {
    EXPECT_OK(run_ranks(2, [where](const SpawnedRank& rank) {
      const auto world = join(rank);
      ASSERT_TRUE(world);
      Backend& group = world->group();
      if (rank.rank.value == 0) {
        const SharedMemory out = memory(*world, where, kLarge);
        std::ranges::fill(out.bytes, mark(0, 1));
        const WorkPtr sent = group.send(Rank{1}, 1, out.bytes);
        ASSERT_OK(barrier(group));  // rank 1 comes here when it has all of it
        EXPECT_OK(sent->wait());
        return;
      }
      Buffer in(kLarge);
      std::promise<Status> told;
      group.recv(Rank{0}, 1, in)->on_complete([&](const Status& status) { told.set_value(status); });
      EXPECT_OK(told.get_future().get());
      EXPECT_TRUE(all_bytes_are(in, mark(0, 1)));
      ASSERT_OK(barrier(group));
    }));
  }
}

// More than a pipe holds, and nothing was posted for it: it is kept, within the budget.
TEST(Mail, SmallMessagesNeedNoReceiver) {
  EXPECT_OK(run_ranks(2, [](const SpawnedRank& rank) {
    const auto world = join(rank);
    ASSERT_TRUE(world);
    Backend& group = world->group();
    constexpr std::size_t kCount = 12;
    Buffer bytes(64U << 10);
    if (rank.rank.value == 0) {
      for (std::size_t i = 0; i < kCount; ++i) {
        std::ranges::fill(bytes, mark(0, i));
        ASSERT_OK(group.send(Rank{1}, 1, bytes)->wait());
      }
    }
    ASSERT_OK(barrier(group));
    for (std::size_t i = 0; rank.rank.value == 1 && i < kCount; ++i) {
      const WorkPtr received = group.recv({}, 1, bytes);
      while (!received->is_completed()) std::this_thread::yield();
      ASSERT_OK(received->status());
      ASSERT_TRUE(all_bytes_are(bytes, mark(0, i)));
    }
    ASSERT_OK(barrier(group));
  }));
}

TEST(Mail, AWaitMayEndBeforeItsMessage) {
  EXPECT_OK(run_ranks(2, [](const SpawnedRank& rank) {
    const auto world = join(rank);
    ASSERT_TRUE(world);
    Backend& group = world->group();
    std::vector<int> number{7};
    if (rank.rank.value == 0) {
      number = {0};
      const WorkPtr received = group.recv(Rank{1}, 1, bytes_of(number));
      EXPECT_EQ(received->wait(Clock::steady().in(20ms)).code(), Code::kTimeout);
      ASSERT_OK(barrier(group));
      ASSERT_OK(received->wait());
      EXPECT_EQ(number[0], 7);
      // One whose own time is over is withdrawn; the group lives on.
      const OpOptions soon{.deadline = Clock::steady().in(20ms)};
      EXPECT_THAT(group.recv(Rank{1}, 2, bytes_of(number), soon)->wait(),
                  StatusIs(Code::kTimeout, HasSubstr("no such message has come from rank 1")));
    } else {
      ASSERT_OK(barrier(group));
      ASSERT_OK(group.send(Rank{0}, 1, bytes_of(number))->wait());
    }
    ASSERT_OK(barrier(group));
  }));
}

TEST(Mail, ACallbackOfAMessageCannotStartACollective) {
  EXPECT_OK(run_ranks(2, [](const SpawnedRank& rank) {
    const auto world = join(rank);
    ASSERT_TRUE(world);
    Backend& group = world->group();
    std::vector<int> number{7};
    const WorkPtr received = group.recv(Rank{1 - rank.rank.value}, 1, bytes_of(number));
    std::promise<Status> said;
    received->on_complete([&](const Status&) { said.set_value(barrier(group)); });
    const std::vector<int> sent{8};
    ASSERT_OK(group.send(Rank{1 - rank.rank.value}, 1, bytes_of(sent))->wait());
    ASSERT_OK(received->wait());
    EXPECT_THAT(said.get_future().get(), StatusIs(Code::kInvalid, HasSubstr("in a completion callback")));
    ASSERT_OK(barrier(group));
  }));
}

// Between hosts a receive makes no connection: nothing but the watch can tell.
TEST(Mail, AReceiveFromARankThatLeavesWithoutAMessageEnds) {
  for (const int leaver : {0, 2}) {
    EXPECT_OK(run_ranks(3, [leaver](const SpawnedRank& rank) {
      const auto world = join_on_two_hosts(rank, 1);
      ASSERT_TRUE(world);
      ASSERT_OK(barrier(world->group()));
      if (rank.rank.value == leaver) return;
      std::vector<int> number{7};
      for (int i = 0; i < 2; ++i) {  // while it leaves, and afterwards
        const Status left =
            world->group()
                .recv(Rank{leaver}, 1, bytes_of(number), {.deadline = Clock::steady().in(60s)})
                ->wait();
        EXPECT_EQ(left.failure(), Failure::kDesync) << left.text();
        EXPECT_EQ(left.cause().peer, Rank{leaver}) << left.text();
        EXPECT_THAT(left.message(), HasSubstr(cat("rank ", leaver, " left the group")));
      }
    }));
  }
}

TEST(MailOfProcesses, InAForkedChildNobodyWaits) {
  EXPECT_OK(ProcessWorld{2}.run([](const SpawnedRank& rank) {
    const auto world = join(rank);
    ASSERT_TRUE(world);
    std::vector<int> number{7};
    const WorkPtr received = world->group().recv(Rank{1 - rank.rank.value}, 1, bytes_of(number));
    const pid_t child = ::fork();
    if (child == 0) {
      const bool refused = received->wait().failure() == Failure::kForked && !received->is_completed();
      ::_exit(refused ? 0 : 1);
    }
    int how = 1;
    EXPECT_EQ(::waitpid(child, &how, 0), child);
    EXPECT_EQ(how, 0);
    ASSERT_OK(barrier(world->group()));  // before, it might have come
    const std::vector<int> sent{8};
    ASSERT_OK(world->group().send(Rank{1 - rank.rank.value}, 1, bytes_of(sent))->wait());
    ASSERT_OK(received->wait());
    EXPECT_EQ(number[0], 8);
    ASSERT_OK(barrier(world->group()));
  }));
}

// Rank 1 gets the signal while large messages go both ways between it and rank 0, and rank 2 only listens.
void expect_typed(int signal, Failure failure, Where where) {
  Survivors survivors;
  const Status status = ProcessWorld{3}.run([&](const SpawnedRank& rank) {
    Survivors::stay();
    const auto world = join(rank, {.stall_after = kSoonStalled});
    ASSERT_TRUE(world);
    Backend& group = world->group();
    ASSERT_OK(barrier(group));
    const SharedMemory out = memory(*world, where, 8U << 20);
    Buffer in(out.bytes.size());
    Status lost;
    for (int number = 0; lost.ok(); ++number) {
      const WorkPtr received =
          group.recv(Rank{rank.rank.value == 0 ? 1 : 0}, rank.rank.value == 2 ? 9 : 1, in);
      const WorkPtr sent =
          rank.rank.value == 2 ? received : group.send(Rank{1 - rank.rank.value}, 1, out.bytes);
      if (rank.rank.value == 1 && number == 5) ::kill(::getpid(), signal);
      for (const WorkPtr& work : {received, sent}) {
        const Status ended = work->wait();
        if (lost.ok()) lost = ended;
      }
    }
    EXPECT_EQ(lost.failure(), failure) << lost.text();
    EXPECT_EQ(lost.cause().peer, Rank{1}) << lost.text();
    EXPECT_EQ(group.send(Rank{1}, 1, out.bytes)->wait().failure(), failure);
    if (::testing::Test::HasFailure()) return;
    survivors.add();
    // The last one ends it, so that the world can end.
    if (survivors.count() == 2) ::kill(world->rendezvous().members[1].pid, SIGKILL);
  });
  EXPECT_EQ(survivors.count(), 2) << status.text();
}

TEST(MailOfProcesses, APeerThatDiesInTheMiddleOfAMessageIsNamed) {
  expect_typed(SIGKILL, Failure::kPeerDied, Where::kForeign);
  expect_typed(SIGKILL, Failure::kPeerDied, Where::kResident);
}

TEST(MailOfProcesses, APeerThatStopsInTheMiddleOfAMessageIsNamed) {
  expect_typed(SIGSTOP, Failure::kPeerStalled, Where::kForeign);
  expect_typed(SIGSTOP, Failure::kPeerStalled, Where::kResident);
}

// Not as if rank 0 had left: its neighbour sees it close the pipe.
TEST(MailOfProcesses, ARankWithoutMemoryForAPipeIsNamedByAll) {
  EXPECT_OK(ProcessWorld{3}.run([](const SpawnedRank& rank) {
    const auto world =
        join_on_two_hosts(rank, 2, {.stall_after = kNeverStalled, .heap_capacity = Bytes::mib(64)});
    ASSERT_TRUE(world);
    Backend& group = world->group();
    std::vector<SharedMemory> all;
    while (rank.rank.value == 0) {
      auto more = world->allocate(Bytes::kib(256));
      if (!more.ok()) break;
      all.push_back(std::move(*more));
    }
    ASSERT_OK(barrier(group));
    std::vector<int> number{7};
    Status first;
    if (rank.rank.value == 0) first = group.send(Rank{1}, 1, bytes_of(number))->wait();
    if (rank.rank.value == 1) first = group.recv(Rank{0}, 1, bytes_of(number))->wait();
    for (const Status& status : {rank.rank.value == 2 ? barrier(group) : first, barrier(group)}) {
      EXPECT_EQ(status.failure(), Failure::kNoSpace) << status.text();
      EXPECT_EQ(status.cause().peer, Rank{0}) << status.text();
    }
    ASSERT_OK(world->rendezvous().store->barrier("all have heard it", WorldSize{3}));
  }));
}

TEST(Mail, AReceiveFromAnyRankEndsWhenAllOthersHaveDestroyedTheGroup) {
  for (const int first : {3, 1}) {  // on one host, and on two
    EXPECT_OK(run_ranks(3, [first](const SpawnedRank& rank) {
      const auto world = join_on_two_hosts(rank, first);
      ASSERT_TRUE(world);
      auto group = world->new_group({Rank{0}, Rank{1}, Rank{2}}, {.timeout = 5min});
      ASSERT_OK(group.status());
      if (rank.rank.value == 0) {
        Buffer bytes(4);
        const Status left = (*group)->recv({}, 1, bytes)->wait();
        EXPECT_THAT(left, StatusIs(Code::kDisconnected, HasSubstr("all other ranks have left the group")));
        EXPECT_EQ(left.failure(), Failure::kDesync);
      }
      group->reset();
      ASSERT_OK(barrier(world->group()));  // they have not left the world
    }));
  }
}

// Those that are left have new pipes; what the one that comes back does reaches nobody.
TEST(MailOfProcesses, AfterAShrinkMessagesGoOnWithoutTheOneThatComesBack) {
  Survivors survivors;
  const Status status = ProcessWorld{3}.run([&](const SpawnedRank& rank) {
    Survivors::stay();
    const auto world = join(rank, {.stall_after = kSoonStalled});
    ASSERT_TRUE(world);
    Buffer bytes(100'000);
    // Pipes between all of them, some of them with bytes in them.
    for (int peer = 0; peer < 3; ++peer)
      ASSERT_OK(world->group().send(Rank{peer}, 1, ByteView(bytes).first(1000))->wait());
    ASSERT_OK(barrier(world->group()));
    const int stopped = world->rendezvous().members[2].pid;
    if (rank.rank.value == 2) {
      ::kill(::getpid(), SIGSTOP);
      for (int i = 0; i < 100; ++i) (void)world->group().send(Rank{i % 2}, 1, bytes);
      EXPECT_FALSE(world->group().recv(Rank{0}, 5, bytes)->wait().ok());
      return;
    }
    EXPECT_EQ(world->group().recv(Rank{2}, 5, bytes)->wait().failure(), Failure::kPeerStalled);
    auto left = world->shrink();
    ASSERT_OK(left.status());
    if (rank.rank.value == 0) ::kill(stopped, SIGCONT);
    const Rank peer{1 - rank.rank.value};
    for (std::size_t i = 0; i < 200; ++i) {
      const Buffer out(bytes.size(), mark(rank.rank.value, i));
      const WorkPtr received = (*left)->recv({}, 1, bytes);
      ASSERT_OK((*left)->send(peer, 1, out)->wait());
      ASSERT_OK(received->wait());
      ASSERT_TRUE(all_bytes_are(bytes, mark(peer.value, i)));
    }
    ASSERT_OK(barrier(**left));
    if (!::testing::Test::HasFailure()) survivors.add();
  });
  EXPECT_EQ(survivors.count(), 2) << status.text();
}

}  // namespace
}  // namespace lockstep::backend
