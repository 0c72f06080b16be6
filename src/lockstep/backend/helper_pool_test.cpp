#include "lockstep/backend/helper_pool.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "lockstep/base/mutex.h"

namespace lockstep::backend {
namespace {

TEST(HelperPool, RunsEveryPartOnce) {
  HelperPool pool(3);
  EXPECT_EQ(pool.count(), 3);
  for (int round = 0; round < 2000; ++round) {
    const int parts = round % 7;
    std::vector<int> runs(static_cast<std::size_t>(parts), 0);  // each written by one part
    pool.run(parts, [&](int part) { ++runs[static_cast<std::size_t>(part)]; });
    EXPECT_EQ(runs, std::vector<int>(static_cast<std::size_t>(parts), 1));
  }
}

TEST(HelperPool, OthersHelp) {
  HelperPool pool(2);
  Mutex mutex;
  CondVar changed;
  std::set<std::thread::id> threads;
  // Each part waits for the other: one thread alone would never return.
  pool.run(2, [&](int) {
    const MutexLock lock(mutex);
    threads.insert(std::this_thread::get_id());
    changed.notify_all();
    while (threads.size() < 2) changed.wait(mutex);
  });
  EXPECT_EQ(threads.size(), 2U);
}

TEST(HelperPool, ServesTwoCallersAtOnce) {
  HelperPool pool(3);
  std::vector<std::thread> callers;
  std::array<int, 4> sums{};
  for (int& sum : sums) {
    callers.emplace_back([&pool, &sum] {
      for (int round = 0; round < 500; ++round) {
        std::array<int, 4> out{};
        pool.run(4, [&](int part) { out[static_cast<std::size_t>(part)] = part + 1; });
        sum += std::accumulate(out.begin(), out.end(), 0);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const int sum : sums) EXPECT_EQ(sum, 5000);
}

TEST(HelperPool, IsSmallAndOffWhereCoresAreShort) {
  EXPECT_EQ(helpers_for(2, 2), 1);
  EXPECT_EQ(helpers_for(8, 2), 1);
  EXPECT_EQ(helpers_for(8, 16), 2);
  EXPECT_EQ(helpers_for(2, 16), 4);
  EXPECT_EQ(helpers_for(1, 64), 4);
}

}  // namespace
}  // namespace lockstep::backend
