#include "lockstep/transport/shm/allocator.h"

#include <gtest/gtest.h>

#include <iterator>
#include <random>
#include <vector>

namespace lockstep::transport::shm {
namespace {

TEST(RangeAllocator, HandsOutTheLowestAlignedRangeThatFits) {
  RangeAllocator ranges(Bytes::kib(64));
  EXPECT_EQ(ranges.allocate(Bytes{1}), 0U);
  EXPECT_EQ(ranges.allocate(Bytes{129}), 128U);
  EXPECT_EQ(ranges.allocate(Bytes{10}, 4096), 4096U);
  EXPECT_EQ(ranges.allocate(Bytes{10}), 384U);
  EXPECT_EQ(ranges.used(), Bytes{128 + 256 + 128 + 128});
  EXPECT_EQ(ranges.taken().rbegin()->first, 4096U);
}

TEST(RangeAllocator, FreedNeighboursBecomeOneRange) {
  RangeAllocator ranges(Bytes{512});
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(ranges.allocate(Bytes{128}), i * 128);
  EXPECT_EQ(ranges.allocate(Bytes{1}), std::nullopt);
  for (const std::uint64_t i : {1U, 3U, 2U, 0U}) EXPECT_EQ(ranges.free(i * 128), Bytes{128});
  EXPECT_EQ(ranges.largest_free(), Bytes{512});
  EXPECT_EQ(ranges.allocate(Bytes{512}), 0U);
}

TEST(RangeAllocator, WhatWasNotHandedOutCannotBeFreed) {
  RangeAllocator ranges(Bytes::kib(4));
  const auto offset = ranges.allocate(Bytes{256});
  EXPECT_EQ(ranges.free(*offset + 128), Bytes{0});
  EXPECT_EQ(ranges.free(*offset), Bytes{256});
  EXPECT_EQ(ranges.free(*offset), Bytes{0});
}

TEST(RangeAllocator, SizesThatWouldOverflowDoNotFit) {
  RangeAllocator ranges(Bytes::kib(4));
  EXPECT_EQ(ranges.allocate(Bytes{UINT64_MAX}), std::nullopt);
  EXPECT_EQ(ranges.allocate(Bytes::kib(4), 1ULL << 63), 0U);
  EXPECT_EQ(ranges.allocate(Bytes{1}, 1ULL << 63), std::nullopt);
}

TEST(RangeAllocator, RandomUseNeverOverlapsAndGivesEverythingBack) {
  std::mt19937_64 random(1);
  RangeAllocator ranges(Bytes::mib(1));
  std::map<std::uint64_t, std::uint64_t> live;
  for (int step = 0; step < 20000; ++step) {
    if (live.empty() || random() % 2 == 0) {
      const std::uint64_t size = random() % 8192;
      const auto offset = ranges.allocate(Bytes{size}, 1ULL << (random() % 13));
      if (!offset) continue;
      const auto next = live.lower_bound(*offset);
      ASSERT_TRUE(next == live.end() || *offset + size <= next->first);
      ASSERT_TRUE(next == live.begin() || std::prev(next)->first + std::prev(next)->second <= *offset);
      live[*offset] = size;
    } else {
      const auto victim = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      ASSERT_GT(ranges.free(victim->first), Bytes{0});
      live.erase(victim);
    }
  }
  for (const auto& [offset, size] : live) ASSERT_GT(ranges.free(offset), Bytes{0});
  EXPECT_EQ(ranges.used(), Bytes{0});
  EXPECT_EQ(ranges.largest_free(), Bytes::mib(1));
}

}  // namespace
}  // namespace lockstep::transport::shm
