#include "lockstep/backend/native/tuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "lockstep/store/hash_store.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::backend {
namespace {

using namespace std::chrono_literals;
using collective::CopyWay;
using collective::Timings;
using collective::Tuning;
using transport::shm::Board;
using transport::shm::BoardOptions;
using transport::shm::Domain;

TEST(Tuner, EveryMemberGetsTheSame) {
  constexpr std::size_t kSize = 3;
  auto domains = Domain::of_threads({Rank{0}, Rank{1}, Rank{2}}, Bytes::mib(64));
  ASSERT_OK(domains.status());
  store::HashStore store;
  const BoardOptions options{.name = "world", .members = {0, 1, 2}, .staging = Bytes::mib(1), .patience = {}};
  std::array<Tuning, kSize> tunings;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kSize; ++i) {
    threads.emplace_back([&, i] {
      auto board = Board::make(*(*domains)[i], options, store, Clock::steady().in(30s));
      ASSERT_OK(board.status());
      // Ranks may be bound to different numbers of cores.
      const auto tuning =
          measure_tuning(**board, static_cast<int>(i) + 1, Clock::steady(), Clock::steady().in(30s));
      ASSERT_OK(tuning.status());
      tunings[i] = *tuning;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(tunings[0], tunings[1]);
  EXPECT_EQ(tunings[0], tunings[2]);
  EXPECT_GE(tunings[0].round_bytes, 1024U);
}

Timings timings_of(std::array<std::array<std::uint64_t, 2>, 3> copy) {
  return {.round = 1000, .read = {410, 0, 0}, .copy = copy, .cores = 4};
}

TEST(Tuning, WritesPastTheCacheWhereThatWinsByMoreThanTheNoise) {
  const Tuning tuning = tuning_from(timings_of({{{100, 95}, {100, 50}, {100, 1000}}}), 2);
  EXPECT_EQ(tuning.copy_way(0), CopyWay::kCached);
  EXPECT_EQ(tuning.copy_way(15 << 10), CopyWay::kCached);
  EXPECT_EQ(tuning.copy_way(17 << 10), CopyWay::kPastCache);
  EXPECT_EQ(tuning.copy_way(255 << 10), CopyWay::kPastCache);
  EXPECT_EQ(tuning.copy_way(64 << 20), CopyWay::kCached);
}

TEST(Tuning, IsNotMisledByRanksThatSharedACore) {
  Timings timings = timings_of({{{100, 300}, {100, 300}, {100, 300}}});
  timings.round = 17'000;
  EXPECT_EQ(tuning_from(timings, 2).copy_way(1 << 20), CopyWay::kPastCache);
  EXPECT_EQ(tuning_from(timings, 2).round_bytes, Tuning().round_bytes);
  EXPECT_EQ(tuning_from(timings, 16).copy_way(1 << 20), CopyWay::kCached);
}

TEST(Tuning, KnowsWhatARoundIsWorth) {
  const Timings timings = timings_of({});
  EXPECT_NEAR(static_cast<double>(tuning_from(timings, 2).round_bytes), 10'000, 10);
  // Four ranks on each core.
  EXPECT_NEAR(static_cast<double>(tuning_from(timings, 16).round_bytes), 2500, 10);
}

}  // namespace
}  // namespace lockstep::backend
