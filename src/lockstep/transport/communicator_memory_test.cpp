// A group whose member runs out of memory while it tells the others why it fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <new>

#include "lockstep/testing/communicator_world.h"
#include "lockstep/testing/short_memory.h"
#include "lockstep/testing/status_matchers.h"
#include "lockstep/transport/communicator.h"

namespace lockstep::transport {
namespace {

using namespace std::chrono_literals;
using testing::CommunicatorWorld;
using testing::FailureIs;

constexpr Duration kHeardWithin = 10s;

// Rank 0 fails without its allocation number `fail_at`, and again if it could not. What the neighbour and the
// rank of the other host hear; true if that allocation was needed.
bool fail_without(int fail_at, std::array<Status, 3>& heard) {
  bool needed = false;
  CommunicatorWorld{{0, 0, 1}, {.merge = 1ms}}.run([&](Communicator& comm) {
    const int rank = comm.position();
    if (rank == 0) {
      const Status why = Status::internal("rank 0 is out of memory", {.failure = Failure::kNoMemory});
      try {
        needed = testing::without_one_allocation(fail_at, [&] { (void)comm.fail(why); });
      } catch (const std::bad_alloc&) {
        needed = true;
        (void)comm.fail(why);
      }
    }
    const Deadline limit = Clock::steady().in(kHeardWithin);
    while (comm.failure().ok() && !limit.expired()) std::this_thread::yield();
    heard[static_cast<std::size_t>(rank)] = comm.failure();
  });
  return needed;
}

TEST(CommunicatorMemory, WhoHasNoMemoryToTellItTellsItTheNextTime) {
  std::array<Status, 3> heard;
  int fail_at = 0;
  for (bool needed = true; needed && !::testing::Test::HasFailure(); ++fail_at) {
    SCOPED_TRACE(::testing::Message() << "allocation " << fail_at);
    // The one try to reach the other host may be late where the machine is busy: then once more.
    for (int turn = 0; turn < 5; ++turn) {
      needed = fail_without(fail_at, heard);
      if (!heard.back().ok()) break;
    }
    for (const Status& status : heard) EXPECT_THAT(status, FailureIs(Failure::kNoMemory)) << status.text();
  }
  EXPECT_GT(fail_at, 3);
}

// Rank 1 ends its links without allocation number `fail_at`, and again if it could not. What rank 0 hears,
// which waits for a message; true if that allocation was needed.
bool abort_without(int fail_at, Status& heard) {
  bool needed = false;
  std::barrier both(2);
  CommunicatorWorld{{0, 1}, {.protection = Protection::kSealed}}.run([&](Communicator& comm) {
    link::Links& links = comm.links();
    const Deadline limit = Clock::steady().in(kHeardWithin);
    std::byte byte{};
    ASSERT_OK(links.begin({}));
    const auto first =
        comm.position() == 0 ? links.send(1, {&byte, 1}, limit) : links.recv(0, {&byte, 1}, limit);
    ASSERT_OK(first.status());
    ASSERT_OK(links.wait(*first, limit));
    if (comm.position() == 0) {
      const auto awaited = links.recv(1, {&byte, 1}, limit);
      ASSERT_OK(awaited.status());
      heard = links.wait(*awaited, limit);
    } else {
      const Status why = Status::internal("rank 1 is out of memory", {.failure = Failure::kNoMemory});
      try {
        needed = testing::without_one_allocation(fail_at, [&] { links.abort(why); });
      } catch (const std::bad_alloc&) {
        needed = true;
        links.abort(why);
      }
    }
    both.arrive_and_wait();
  });
  return needed;
}

TEST(CommunicatorMemory, ALinkThatCouldNotBeToldIsToldTheNextTime) {
  int fail_at = 0;
  for (bool needed = true; needed && !::testing::Test::HasFailure(); ++fail_at) {
    SCOPED_TRACE(::testing::Message() << "allocation " << fail_at);
    Status heard;
    needed = abort_without(fail_at, heard);
    EXPECT_THAT(heard, FailureIs(Failure::kNoMemory)) << heard.text();
  }
  EXPECT_GT(fail_at, 1);
}

}  // namespace
}  // namespace lockstep::transport
