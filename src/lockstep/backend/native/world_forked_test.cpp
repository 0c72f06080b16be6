// What a child of a rank may do with what it has of its parent's.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "lockstep/backend/native/world_test_support.h"
#include "lockstep/backend/operations.h"
#include "lockstep/backend/window.h"
#include "lockstep/testing/process_world.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::backend {
namespace {

using lockstep::testing::ProcessWorld;

TEST(WorldOfProcesses, InAForkedChildEveryOperationIsRefused) {
  EXPECT_OK(ProcessWorld{2}.run([](const SpawnedRank& rank) {
    auto world = join(rank);
    ASSERT_TRUE(world);
    ASSERT_OK(barrier(world->group()));
    WorkPtr running;  // rank 0's, while it forks
    if (rank.rank.value == 0) running = world->group().start({.kind = collective::OpKind::kBarrier});
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      std::vector<float> data{1};
      const bool refused = all_reduce(world->group(), std::span(data)).failure() == Failure::kForked &&
                           world->new_group({rank.rank}).status().failure() == Failure::kForked &&
                           (!running || running->wait().failure() == Failure::kForked);
      world.reset();
      ::_exit(refused ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    store::Store& store = *world->rendezvous().store;
    if (running) {
      ASSERT_OK(store.set("forked", {}));
      ASSERT_OK(running->wait());
    } else {
      ASSERT_OK(store.wait({{std::string("forked")}}));
      ASSERT_OK(barrier(world->group()));
    }
    // The parent's group has not noticed.
    ASSERT_OK(barrier(world->group()));
  }));
}

// A child whose threads have the memory that the parent's had, while they run and after they have ended.
TEST(WorldOfProcesses, AForkedChildWithThreadsOfItsOwnMayDestroyTheWorld) {
  for (const int hosts : {1, 2}) {
    EXPECT_OK(ProcessWorld{2}.run([hosts](const SpawnedRank& rank) {
      auto world =
          hosts == 1 ? join(rank, {.stall_after = kNeverStalled, .threads = 2}) : join_on_two_hosts(rank, 1);
      ASSERT_TRUE(world);
      std::vector<float> data(1 << 20, 1);
      ASSERT_OK(all_reduce(world->group(), std::span(data)));
      auto window = dynamic_cast<WindowMaker&>(*world).open_window({Rank{0}, Rank{1}}, Bytes{64});
      ASSERT_OK(window.status());
      for (const bool ended : {true, false}) {
        const pid_t child = ::fork();
        if (child == 0) {
          ::alarm(60);
          std::atomic<bool> stop = false;
          std::vector<std::thread> own;
          for (int i = 0; i < 6; ++i) own.emplace_back([&] { stop.wait(false); });
          const auto join_own = [&] {
            stop = true;
            stop.notify_all();
            for (std::thread& thread : own) thread.join();
          };
          if (ended) join_own();
          window->reset();
          world.reset();
          if (!ended) join_own();
          ::_exit(0);
        }
        int status = -1;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
      }
      ASSERT_OK(barrier(world->group()));
    }));
  }
}

}  // namespace
}  // namespace lockstep::backend
